//! Benchmarks of the exact search.
//!
//!     bench_mining [--rows N] [--dimensions D] [--k K] [--threads T] [--repeat R]
//!                  [--kernel NAME | --device cpu | --device cuda] [--only laser]
//!
//! compares one search in both directions with the two flat searches of FAISS on the same data
//! and threads in the same run; `LASER_BENCH_PYTHON` names a Python with faiss-cpu and numpy
//! (default `python3`), and `--only laser` leaves FAISS out. With `--curve MEGABYTES` it shows instead how time and memory grow with
//! the number of rows when the search may use only that much memory. Devices need the features
//! `candle` and `cuda`.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use laser_mining::{Device, Kernel, Neighbours, RowStore, knn};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Setup {
    rows: usize,
    dimensions: usize,
    k: usize,
    threads: usize,
    kernel: Kernel,
    device: Option<Device>,
    repeat: usize,
    only_laser: bool,
    curve: Option<usize>,
    one_size: bool,
}

fn main() -> Result<()> {
    let mut setup = Setup {
        rows: 20_000,
        dimensions: 1024,
        k: 4,
        threads: std::thread::available_parallelism()?.get(),
        kernel: Kernel::Auto,
        device: None,
        repeat: 3,
        only_laser: false,
        curve: None,
        one_size: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--one-size" {
            setup.one_size = true;
            continue;
        }
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        match name.as_str() {
            "--rows" => setup.rows = value.parse()?,
            "--dimensions" => setup.dimensions = value.parse()?,
            "--k" => setup.k = value.parse()?,
            "--threads" => setup.threads = value.parse()?,
            "--repeat" => setup.repeat = value.parse()?,
            "--only" if value == "laser" => setup.only_laser = true,
            "--curve" => setup.curve = Some(value.parse()?),
            "--device" => setup.device = Some(device(&value)?),
            "--kernel" => {
                setup.kernel = Kernel::ALL
                    .into_iter()
                    .find(|kernel| kernel.name() == value)
                    .ok_or_else(|| {
                        format!("kernels: {}", Kernel::ALL.map(Kernel::name).join(", "))
                    })?;
            }
            _ => return Err(format!("unknown argument {name}").into()),
        }
    }
    if setup.curve.is_some() && setup.device.is_some() {
        return Err("the curve is that of the processor".into());
    }
    match setup.curve {
        None => against_faiss(&setup),
        Some(megabytes) if setup.one_size => one_size(&setup, megabytes),
        Some(megabytes) => curve(&setup, megabytes),
    }
}

fn device(name: &str) -> Result<Device> {
    match name {
        #[cfg(feature = "candle")]
        "cpu" => Ok(Device::new(candle_core::Device::Cpu)?),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Device::cuda(0)?),
        _ => Err(format!("this build has no device {name}").into()),
    }
}

/// Sentences and translations: rows around 200 topics, of which every second target row is close
/// to the source row of the same position. Calls `push` with each row.
fn generate(setup: &Setup, target: bool, mut push: impl FnMut(&[f32]) -> Result<()>) -> Result<()> {
    fn noise(rng: &mut ChaCha8Rng) -> f32 {
        // The sum of the four bytes of a word is near enough to a normal variable.
        let bytes = rng.random::<u32>().to_le_bytes();
        (bytes.iter().map(|&byte| i32::from(byte)).sum::<i32>() - 510) as f32 / 147.0
    }
    let mut shared = ChaCha8Rng::seed_from_u64(1);
    let topics: Vec<f32> = (0..200 * setup.dimensions)
        .map(|_| noise(&mut shared))
        .collect();
    let mut own = ChaCha8Rng::seed_from_u64(2);
    let mut row = vec![0.0f32; setup.dimensions];
    for at in 0..setup.rows {
        let mut meaning = ChaCha8Rng::seed_from_u64(1000 + at as u64);
        if target && at % 2 == 1 {
            meaning = ChaCha8Rng::seed_from_u64((1 << 40) + at as u64);
        }
        let topic = meaning.random_range(0..200) * setup.dimensions;
        for (value, base) in row.iter_mut().zip(&topics[topic..]) {
            *value = 0.5 * base + noise(&mut meaning);
            if target {
                *value += 0.4 * noise(&mut own);
            }
        }
        let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        row.iter_mut().for_each(|value| *value /= norm);
        push(&row)?;
    }
    Ok(())
}

fn values(setup: &Setup, target: bool) -> Result<Vec<f32>> {
    let mut values = Vec::with_capacity(setup.rows * setup.dimensions);
    generate(setup, target, |row| {
        values.extend_from_slice(row);
        Ok(())
    })?;
    Ok(values)
}

fn write(path: &Path, values: &[f32]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for value in values {
        file.write_all(&value.to_le_bytes())?;
    }
    Ok(file.flush()?)
}

/// Reads the two matrices, searches in both directions, prints seconds, CPU-seconds, and writes
/// the forward neighbours.
const FAISS: &str = r#"
import sys, time, numpy, faiss
source, target, out = sys.argv[1:4]
dimensions, k, threads, repeat = map(int, sys.argv[4:8])
faiss.omp_set_num_threads(threads)
x = numpy.fromfile(source, dtype=numpy.float32).reshape(-1, dimensions)
y = numpy.fromfile(target, dtype=numpy.float32).reshape(-1, dimensions)
best = None
for _ in range(repeat):
    wall, cpu = time.perf_counter(), time.process_time()
    lists = []
    for base, queries in ((y, x), (x, y)):
        index = faiss.IndexFlatIP(dimensions)
        index.add(base)
        lists.append(index.search(queries, k)[1])
    run = (time.process_time() - cpu, time.perf_counter() - wall)
    best = min(best, run) if best else run
lists[0].astype(numpy.int64).tofile(out)
print(faiss.__version__, best[1], best[0])
"#;

fn against_faiss(setup: &Setup) -> Result<()> {
    let ours_is = match &setup.device {
        Some(device) => device.name(),
        None => setup.kernel.resolve().name().to_owned(),
    };
    println!(
        "{} x {} rows, {} dimensions, k {}, both directions, {} threads, best of {}",
        setup.rows, setup.rows, setup.dimensions, setup.k, setup.threads, setup.repeat
    );
    let (source, target) = (values(setup, false)?, values(setup, true)?);
    let options = knn::Options {
        threads: setup.threads,
        kernel: setup.kernel,
        device: setup.device.as_ref(),
        ..Default::default()
    };
    let mut ours: Option<(f64, f64)> = None;
    let mut lists = None;
    let measure = |ours: &mut Option<(f64, f64)>, lists: &mut Option<Neighbours>| -> Result<()> {
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        let (forward, _) = knn::both(&source, &target, setup.dimensions, setup.k, &options)?;
        let run = (cpu_seconds() - cpu, wall.elapsed().as_secs_f64());
        if ours.is_none_or(|best| run < best) {
            *ours = Some(run);
        }
        *lists = Some(forward);
        Ok(())
    };
    // Half of the runs before FAISS and half after it: a shared machine is not equally busy.
    let before = match setup.only_laser {
        true => setup.repeat,
        false => setup.repeat.div_ceil(2),
    };
    for _ in 0..before {
        measure(&mut ours, &mut lists)?;
    }

    if setup.only_laser {
        let (cpu, wall) = ours.expect("measured");
        println!(
            "laser {ours_is:<19} {wall:8.2} s  {cpu:8.2} CPU-seconds, {:.0} MB at most",
            peak_megabytes()
        );
        return Ok(());
    }

    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    write(&file("source"), &source)?;
    write(&file("target"), &target)?;
    let python = std::env::var("LASER_BENCH_PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(&python)
        .args(["-c", FAISS])
        .args([file("source"), file("target"), file("neighbours")])
        .args([setup.dimensions, setup.k, setup.threads, setup.repeat].map(|n| n.to_string()))
        .env("OMP_NUM_THREADS", setup.threads.to_string())
        .env("OPENBLAS_NUM_THREADS", setup.threads.to_string())
        .output()
        .map_err(|error| format!("could not run {python}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{python} failed (faiss-cpu and numpy are needed): {}",
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    let text = String::from_utf8(output.stdout)?;
    let mut words = text.split_whitespace();
    let version = words.next().ok_or("no answer from FAISS")?;
    let faiss_wall: f64 = words.next().ok_or("no time from FAISS")?.parse()?;
    let faiss_cpu: f64 = words.next().ok_or("no time from FAISS")?.parse()?;

    for _ in 0..setup.repeat / 2 {
        measure(&mut ours, &mut lists)?;
    }
    let (cpu, wall) = ours.expect("measured");
    let lists = lists.expect("measured");
    let found: Vec<u32> = std::fs::read(file("neighbours"))?
        .chunks_exact(8)
        .map(|bytes| i64::from_le_bytes(bytes.try_into().expect("eight bytes")) as u32)
        .collect();
    let (mut same, mut all) = (0, 0);
    for (row, theirs) in found.chunks_exact(setup.k.min(setup.rows)).enumerate() {
        same += lists
            .positions(row)
            .iter()
            .filter(|position| theirs.contains(position))
            .count();
        all += theirs.len();
    }
    println!("FAISS {version} IndexFlatIP   {faiss_wall:8.2} s  {faiss_cpu:8.2} CPU-seconds");
    println!("laser {ours_is:<19} {wall:8.2} s  {cpu:8.2} CPU-seconds");
    println!(
        "ratio                     {:8.2}    {:8.2}",
        faiss_wall / wall,
        faiss_cpu / cpu
    );
    println!("{same} of {all} forward neighbours are also those of FAISS");
    Ok(())
}

/// Runs itself for each size, so that the peak of one does not hide that of another.
fn curve(setup: &Setup, megabytes: usize) -> Result<()> {
    println!(
        "{} dimensions, k {}, {} threads, {megabytes} MB for the search, rows in files",
        setup.dimensions, setup.k, setup.threads
    );
    println!(
        "{:>9} {:>10} {:>12} {:>12} {:>9}",
        "rows", "s", "CPU-seconds", "s/row²", "peak MB"
    );
    for rows in [10_000, 20_000, 40_000, 80_000] {
        let arguments = [
            ("--rows", rows.to_string()),
            ("--dimensions", setup.dimensions.to_string()),
            ("--k", setup.k.to_string()),
            ("--threads", setup.threads.to_string()),
            ("--kernel", setup.kernel.name().to_string()),
            ("--curve", megabytes.to_string()),
        ];
        let status = Command::new(std::env::current_exe()?)
            .args(arguments.iter().flat_map(|(name, value)| [*name, value]))
            .arg("--one-size")
            .status()?;
        if !status.success() {
            return Err(format!("{rows} rows failed").into());
        }
    }
    Ok(())
}

fn one_size(setup: &Setup, megabytes: usize) -> Result<()> {
    let memory = megabytes << 20;
    let mut stores = Vec::new();
    for target in [false, true] {
        let mut store = RowStore::new(setup.dimensions, memory / 4, None);
        generate(setup, target, |row| Ok(store.push(row)?))?;
        stores.push(store);
    }
    let options = knn::Options {
        threads: setup.threads,
        kernel: setup.kernel,
        memory: Some(memory),
        ..Default::default()
    };
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    let lists = knn::both_rows(
        (&stores[0]).into(),
        (&stores[1]).into(),
        setup.dimensions,
        setup.k,
        &options,
    )?;
    let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    assert_eq!(lists.0.rows(), setup.rows);
    println!(
        "{:>9} {wall:>10.2} {cpu:>12.2} {:>12.2e} {:>9.0}",
        setup.rows,
        cpu / (setup.rows as f64).powi(2),
        peak_megabytes()
    );
    Ok(())
}

#[allow(unsafe_code)]
fn usage() -> libc::rusage {
    // SAFETY: a zeroed rusage is a valid one, and getrusage fills it.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    }
}

fn cpu_seconds() -> f64 {
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let usage = usage();
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn peak_megabytes() -> f64 {
    usage().ru_maxrss as f64 / 1024.0
}
