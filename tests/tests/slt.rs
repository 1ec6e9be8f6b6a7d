//! Every file of `slt/`. `SLT=name` runs the files whose name contains `name`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Result;
use laser_tests::{Cluster, skipped, slt};

const THREADS: usize = 4;

#[test]
fn sqllogictest_files_pass() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("slt");
    let wanted = std::env::var("SLT").unwrap_or_default();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "slt"))
        .filter(|path| path.to_string_lossy().contains(&wanted))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no file in slt/ matches {wanted:?}");

    let models = tempfile::tempdir()?;
    slt::write_models(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "tiny").start()?;

    let queue = Mutex::new(files.into_iter());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let Some(file) = queue.lock().unwrap().next() else {
                        return;
                    };
                    let name = file
                        .file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned();
                    match slt::run_file(&file, &cluster, models.path()) {
                        Ok(slt::Outcome::Passed) => println!("{name}: ok"),
                        Ok(slt::Outcome::Skipped(why)) => skipped(&name, &why),
                        Err(error) => {
                            println!("{name}: FAILED\n{error:#}");
                            failures.lock().unwrap().push(name);
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "failed: {failures:?}");
    Ok(())
}
