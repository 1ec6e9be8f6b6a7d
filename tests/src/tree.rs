//! The private copy of a PostgreSQL installation that has laser installed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail, ensure};

use crate::account::Account;

/// Where the programs of the private PostgreSQL lie, and where templates of data folders go.
#[derive(Debug)]
pub struct Tree {
    bin: PathBuf,
    home: PathBuf,
    account: Option<Account>,
}

impl Tree {
    /// The tree of this build: made on first use, refreshed when the library, the encoder program,
    /// the SQL files or the shipped models have changed since. One process at a time does that.
    ///
    /// # Errors
    /// When the library or the encoder program has not been built, or PostgreSQL is not installed.
    pub fn get() -> Result<&'static Tree> {
        static TREE: OnceLock<Result<Tree, String>> = OnceLock::new();
        match TREE.get_or_init(|| make().map_err(|error| format!("{error:#}"))) {
            Ok(tree) => Ok(tree),
            Err(message) => bail!("{message}"),
        }
    }

    /// The folder with `postgres`, `psql`, `pgbench`, ….
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// A folder of this build beside the programs, which the account of the servers can read.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The account that servers run as.
    pub fn account(&self) -> Option<Account> {
        self.account
    }

    /// A command that runs a program of the tree as the account of the servers.
    pub fn command(&self, program: &str) -> Command {
        Account::command(self.account, self.bin.join(program))
    }

    /// The major version of PostgreSQL, which data folders belong to.
    fn major(&self) -> Result<u32> {
        let output = self.command("initdb").arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_once("(PostgreSQL) ").map(|(_, version)| version);
        version
            .and_then(|version| version.split(|c: char| !c.is_ascii_digit()).next())
            .and_then(|major| major.parse().ok())
            .with_context(|| format!("initdb calls itself {text:?}"))
    }

    /// A data folder made by `initdb` in this encoding, to be copied; made once.
    pub(crate) fn template(&self, encoding: &str) -> Result<PathBuf> {
        let major = self.major()?;
        let folder = self.home.join(format!("data-{major}-{encoding}"));
        let _lock = lock(&self.home.join("lock"))?;
        if folder.join("done").exists() {
            return Ok(folder.join("data"));
        }
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        Account::own(self.account, &folder)?;
        let data = folder.join("data");
        let output = self
            .command("initdb")
            // Tests ask what laser notices of damage by itself; those that want checksums switch
            // them on.
            .args((major >= 18).then_some("--no-data-checksums"))
            .args([
                "--no-sync",
                "--auth=trust",
                "--username=postgres",
                "--locale=C",
            ])
            .arg(format!("--encoding={encoding}"))
            .arg("--pgdata")
            .arg(&data)
            .output()
            .context("running initdb")?;
        ensure!(
            output.status.success(),
            "initdb failed:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        File::create(folder.join("done"))?;
        Ok(data)
    }
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_path_buf()
}

/// The folder that cargo builds in: the test programs lie in `<target>/release/deps`.
fn target() -> Result<PathBuf> {
    if let Some(target) = std::env::var_os("CARGO_TARGET_DIR") {
        return Ok(PathBuf::from(target));
    }
    let program = std::env::current_exe()?;
    let release = program
        .ancestors()
        .find(|folder| folder.file_name().is_some_and(|name| name == "release"))
        .context("tests run in the release profile: cargo test --release")?;
    Ok(release
        .parent()
        .context("release/ has a parent")?
        .to_path_buf())
}

/// An exclusive lock on a file, held until the value is dropped.
fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    file.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

fn make() -> Result<Tree> {
    let root = root();
    let target = target()?;
    let release = target.join("release");
    for (file, package) in [("liblaser.so", "laser"), ("laser-encoder", "laser-encoder")] {
        ensure!(
            release.join(file).exists(),
            "{} is missing: cargo build --release -p {package} (make test does it)",
            release.join(file).display()
        );
    }
    let account = Account::for_servers()?;
    let mut home = target.join("pg");
    fs::create_dir_all(&home)?;
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755))?;
    if !Account::reaches(account, &home) {
        // Built below a folder such as /root that the servers' account cannot enter.
        let mut hash = DefaultHasher::new();
        target.hash(&mut hash);
        home = PathBuf::from(format!("/var/tmp/laser-tests-{:016x}", hash.finish()));
        fs::create_dir_all(&home)?;
        fs::set_permissions(&home, fs::Permissions::from_mode(0o755))?;
    }

    let _lock = lock(&home.join("lock"))?;
    let stamp_file = home.join("stamp");
    let bin_file = home.join("bin");
    let stamp = stamp(&root, &release)?;
    if fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
        let bin = PathBuf::from(fs::read_to_string(&bin_file)?.trim());
        return Ok(Tree { bin, home, account });
    }
    let output = Command::new(root.join("scripts/pg-tree.sh"))
        .arg(home.join("tree"))
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .context("running scripts/pg-tree.sh")?;
    ensure!(
        output.status.success(),
        "scripts/pg-tree.sh failed:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let bin = String::from_utf8(output.stdout)?;
    let bin = bin
        .lines()
        .last()
        .context("scripts/pg-tree.sh printed no folder")?;
    fs::write(&bin_file, bin)?;
    fs::write(&stamp_file, stamp)?;
    Ok(Tree {
        bin: PathBuf::from(bin),
        home,
        account,
    })
}

/// Names, sizes and times of everything that is installed.
fn stamp(root: &Path, release: &Path) -> Result<String> {
    let mut files = vec![
        release.join("liblaser.so"),
        release.join("laser-encoder"),
        root.join("extension/laser.control"),
        root.join("extension/laser_pgvector.control"),
        root.join("scripts/install.sh"),
        root.join("scripts/pg-tree.sh"),
    ];
    let mut folders = vec![root.join("sql"), root.join("encoder/models")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    let mut stamp = String::new();
    for file in files {
        let meta = fs::metadata(&file).with_context(|| format!("reading {}", file.display()))?;
        let time = meta.modified()?.duration_since(UNIX_EPOCH)?.as_nanos();
        writeln!(stamp, "{} {} {time}", file.display(), meta.len())?;
    }
    if let Some(pg_config) = std::env::var_os("PGRX_PG_CONFIG_PATH") {
        writeln!(stamp, "{}", Path::new(&pg_config).display())?;
    }
    Ok(stamp)
}
