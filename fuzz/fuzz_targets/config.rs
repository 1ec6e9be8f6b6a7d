//! `config.json`: what is accepted is written back the same.
#![no_main]

use laser_model::{Config, LocalEncoder};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Ok(json) = std::str::from_utf8(data) else { return };
    let Ok(config) = Config::from_json(json) else { return };
    let _ = LocalEncoder::suits(&config);
    let again = Config::from_json(&config.to_json()).expect("it was written");
    assert_eq!(config, again);
}));
