//! Measures training steps. `make bench-trainer` runs it: `bench_trainer [all|NAME] [THREADS]`.
//!
//! Each step (forward, backward, update) is compared with PyTorch's in the same run, in f32 and, where the
//! processor has units for it, in bf16. `LASER_BENCH_PYTHON` names a Python with PyTorch; without it
//! only our own time is printed.
//!
//! - `lstm`: BiLSTM 2×512, input 320, 256 pairs of sentences with 20 tokens. Built with the feature `cuda`,
//!   on a machine with a GPU, it is also timed there, beside cuDNN's.
//! - `transformer`: 6 layers of 384, 64 sentences of 64 tokens
//! - `decoder`: LASER's, 1,024 wide, with an exact softmax over 40,000 types, 64 sentences of 20 tokens
//! - `mean`: the dual encoder over averaged embeddings, 512 wide, vocabulary 32,000, 2,048 pairs

mod data;
mod decoder;
mod lstm;
mod mean;
mod peer;
mod step;
mod time;
mod transformer;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.get(1).and_then(|t| t.parse().ok()).unwrap_or(1);
    type Benchmark = fn(usize);
    let all: [(&str, Benchmark); 4] = [
        ("lstm", lstm::run),
        ("transformer", transformer::run),
        ("decoder", decoder::run),
        ("mean", mean::run),
    ];
    let wanted = arguments.first().map_or("all", String::as_str);
    if wanted != "all" && all.iter().all(|(name, _)| *name != wanted) {
        let names = all.map(|(name, _)| name).join(", ");
        eprintln!("unknown benchmark \"{wanted}\"; use all, or one of {names}");
        std::process::exit(2);
    }
    for (name, run) in all {
        if wanted == "all" || wanted == name {
            run(threads);
        }
    }
}
