//! The same step in PyTorch.

use std::process::Command;

use laser_kernels::training::Arithmetic;
use laser_kernels::units;

use crate::time::{NEVER, Time};

/// What PyTorch runs.
const STEP: &str = include_str!("peer.py");

/// Seconds of a step of `model` in a precision on a device, by the PyTorch of `python`; says why where it fails.
pub fn time(
    python: &str,
    model: &str,
    threads: usize,
    runs: usize,
    kind: &str,
    device: &str,
) -> Option<Time> {
    let (count, runs) = (threads.to_string(), runs.to_string());
    let output = Command::new(python)
        .args(["-c", STEP, model, &count, &runs, kind, device])
        .env("OMP_NUM_THREADS", threads.to_string())
        .output();
    match output {
        Ok(o) if o.status.success() => {
            let text = String::from_utf8_lossy(&o.stdout);
            let mut numbers = text.split_whitespace().filter_map(|n| n.parse().ok());
            Some(Time {
                wall: numbers.next()?,
                cpu: numbers.next()?,
            })
        }
        Ok(o) => {
            eprintln!("PyTorch failed: {}", String::from_utf8_lossy(&o.stderr));
            None
        }
        Err(e) => {
            eprintln!("could not run {python}: {e}");
            None
        }
    }
}

/// The Python with PyTorch.
pub fn python() -> Option<String> {
    std::env::var("LASER_BENCH_PYTHON").ok()
}

/// Our time of a step in each precision that the processor computes, printed.
pub fn ours(step: impl Fn(Arithmetic) -> Time) -> Vec<(&'static str, Time)> {
    let mut kinds = vec![(Arithmetic::F32, "f32")];
    if units::has_bf16_unit() {
        kinds.push((Arithmetic::Bf16, "bf16"));
    } else {
        println!("  this processor has no bf16 units: our bf16 products are not timed");
    }
    kinds
        .into_iter()
        .map(|(arithmetic, name)| {
            let time = step(arithmetic);
            println!("  laser   {name:5} {:8.3} {:8.3}", time.wall, time.cpu);
            (name, time)
        })
        .collect()
}

/// Prints PyTorch's time of a step of `model`, and the ratio to ours, in each precision and of the faster
/// one of each.
pub fn compare(ours: &[(&str, Time)], model: &str, threads: usize, runs: usize) {
    let Some(python) = python() else {
        println!("  set LASER_BENCH_PYTHON to a Python with PyTorch to compare with it");
        return;
    };
    let best = ours.iter().fold(NEVER, |best, (_, own)| best.min(*own));
    let mut theirs = NEVER;
    for kind in ["f32", "bf16"] {
        let Some(peer) = time(&python, model, threads, runs, kind, "cpu") else {
            continue;
        };
        theirs = theirs.min(peer);
        print!("  PyTorch {kind:5} {:8.3} {:8.3}", peer.wall, peer.cpu);
        match ours.iter().find(|(name, _)| *name == kind) {
            Some((_, own)) => println!(
                "   ratio {:.2} {:.2}",
                peer.wall / own.wall,
                peer.cpu / own.cpu
            ),
            None => println!(),
        }
    }
    if theirs.wall.is_finite() {
        println!(
            "  speed relative to PyTorch, the faster kind of each: {:.2} by wall time, {:.2} by \
             processor time",
            theirs.wall / best.wall,
            theirs.cpu / best.cpu
        );
    }
}
