//! Input and receive of the types: what is accepted comes back the same through output and send.
#![no_main]

use laser_vector::{Element, check, f16, text, wire};
use libfuzzer_sys::fuzz_target;

fn same<E: Element>(a: &[E], b: &[E]) -> bool {
    bytemuck::cast_slice::<E, u8>(a) == bytemuck::cast_slice::<E, u8>(b)
}

fn print<E: Element>(values: &[E], form: impl Fn(f32) -> String) -> String {
    let numbers: Vec<String> = values.iter().map(|x| form(x.to_f32())).collect();
    format!("[{}]", numbers.join(","))
}

fn round<E: Element>(values: &[E]) {
    check(values).expect("input lets only embeddings through");
    let mut bytes = Vec::new();
    wire::encode(values, &mut bytes);
    assert!(same(
        &wire::decode::<E>(&bytes).expect("it was sent"),
        values
    ));
    for printed in [
        print(values, |x| format!("{x}")),
        print(values, |x| format!("{x:e}")),
    ] {
        let read = text::parse::<E>(printed.as_bytes()).expect("it was printed");
        assert!(same(&read, values), "{printed}");
    }
}

fn both<E: Element>(data: &[u8]) {
    match text::parse::<E>(data) {
        Ok(values) => round(&values),
        Err(error) => assert!(error.to_string().len() < 600),
    }
    if let Ok(values) = wire::decode::<E>(data) {
        let mut bytes = Vec::new();
        wire::encode(&values, &mut bytes);
        assert_eq!(bytes, data);
        round(&values);
    }
}

fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    both::<f32>(data);
    both::<f16>(data);
}));
