//! What the program says, and what it leaves alone.

use std::path::Path;
use std::process::{Command, Output};

fn laser(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_laser"))
        .args(arguments)
        .output()
        .expect("the program runs")
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_is_replaced_when_told_to() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../encoder");
    let fixture = root
        .join("../crates/import/tests/fixtures/bert-mean")
        .display()
        .to_string();
    let folder = tempfile::tempdir().expect("folder");
    let imported = folder.path().join("model");
    let exported = folder.path().join("exported");
    let (to, from) = (
        imported.display().to_string(),
        root.join("models/laser-mean-384").display().to_string(),
    );
    let other = exported.display().to_string();
    for command in [
        vec!["import", &*fixture, "-o", &*to],
        vec!["export", "-m", &*from, "-o", &*other],
        vec!["export", &*from, "-o", &*other],
    ] {
        let written = Path::new(command.last().expect("a folder")).join("config.json");
        if !written.exists() {
            let output = laser(&command);
            assert!(output.status.success(), "{}", message(&output));
        }
        std::fs::write(&written, "{}").expect("written");
        let output = laser(&command);
        assert!(!output.status.success(), "{command:?}");
        assert!(message(&output).contains("--force"), "{}", message(&output));
        assert_eq!(
            std::fs::read_to_string(&written).expect("it is there"),
            "{}"
        );
        let output = laser(&[&command[..], &["--force"]].concat());
        assert!(output.status.success(), "{}", message(&output));
        assert!(std::fs::metadata(&written).expect("it is there").len() > 2);
    }
}

#[test]
fn a_cause_is_told_once() {
    for command in [
        ["train", "/nowhere/model.toml"].as_slice(),
        &["tokenizer", "--keyed", "/nowhere", "-o", "/nowhere/out"],
        &["import", "/nowhere", "-o", "/nowhere/out"],
    ] {
        let output = laser(command);
        assert!(!output.status.success());
        let message = message(&output);
        assert_eq!(message.matches("No such file").count(), 1, "{message}");
        assert!(message.contains("/nowhere"), "{message}");
    }
}
