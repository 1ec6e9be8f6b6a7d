//! A server of its own, for one test or a few.
#![allow(unsafe_code)] // signals

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use postgres::{Client, Config, NoTls};
use tempfile::TempDir;

use crate::account::Account;
use crate::log;
use crate::tree::Tree;

/// How long a server may take to start, stop or catch up before a test fails.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// What a cluster is made with; see [`Cluster::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    preload: bool,
    encoding: String,
    settings: Vec<(String, String)>,
    tcp: bool,
}

impl Builder {
    /// Whether `shared_preload_libraries` names laser (default: yes).
    pub fn preload(mut self, preload: bool) -> Builder {
        self.preload = preload;
        self
    }

    /// The encoding of the template databases (default: UTF8).
    pub fn encoding(mut self, encoding: &str) -> Builder {
        encoding.clone_into(&mut self.encoding);
        self
    }

    /// A line of postgresql.conf; the value is quoted here. The last one of a name counts.
    pub fn setting(mut self, name: &str, value: &str) -> Builder {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Folders with models (`laser.model_path`) and the default model (`laser.model`).
    pub fn models(self, path: &Path, default: &str) -> Builder {
        self.setting("laser.model_path", &path.display().to_string())
            .setting("laser.model", default)
    }

    /// Listens on a free port of 127.0.0.1 as well (default: on the Unix socket alone).
    pub fn tcp(mut self, tcp: bool) -> Builder {
        self.tcp = tcp;
        self
    }

    /// Makes the data folder and starts the server.
    ///
    /// # Errors
    /// With the server's log, when it does not start.
    pub fn start(self) -> Result<Cluster> {
        let tree = Tree::get()?;
        let template = tree.template(&self.encoding)?;
        let mut cluster = Cluster::prepare(tree, self.clone())?;
        let output = Account::command(tree.account(), "cp")
            .args(["-a", "--reflink=auto"])
            .arg(&template)
            .arg(cluster.data())
            .output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        cluster.configure(&self)?;
        cluster.start()?;
        Ok(cluster)
    }
}

/// Messages that a session received besides results, one per line, as `SEVERITY: message`.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Mutex<Vec<String>>>);

impl Notices {
    /// Everything received since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no holder panics"))
    }
}

/// A running (or stopped) server. Stopped and removed when dropped; its log must tell of no fault of the
/// server then (leaked references, failed assertions, PANIC, crashed processes), unless a test has asked for
/// it by [`Cluster::expect_fault`].
#[derive(Debug)]
pub struct Cluster {
    tree: &'static Tree,
    folder: TempDir,
    port: u16,
    builder: Builder,
    server: Option<Child>,
    watchdog: Child,
    expected_faults: Vec<String>,
}

impl Cluster {
    /// A cluster with laser preloaded, UTF-8, no TCP, and settings for tests (no fsync).
    pub fn builder() -> Builder {
        Builder {
            preload: true,
            encoding: "UTF8".into(),
            settings: Vec::new(),
            tcp: false,
        }
    }

    /// Starts a cluster with the defaults.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn new() -> Result<Cluster> {
        Cluster::builder().start()
    }

    /// The folder of the cluster and its watchdog, without data.
    fn prepare(tree: &'static Tree, builder: Builder) -> Result<Cluster> {
        // A socket's path holds 107 bytes at most: stay near the root.
        let folder = tempfile::Builder::new()
            .prefix("laser-")
            .tempdir_in("/tmp")?;
        Account::own(tree.account(), folder.path())?;
        // When this process ends without dropping the cluster (a signal, a static), the pipe
        // closes and the watchdog takes the server and its folder away.
        let watchdog = Command::new("/bin/sh")
            .arg("-c")
            .arg(
                "cat >/dev/null; [ -d \"$1\" ] || exit 0; \
                 pid=$(head -n 1 \"$1/data/postmaster.pid\" 2>/dev/null); \
                 [ \"$(readlink \"/proc/$pid/cwd\")\" != \"$1/data\" ] || kill -QUIT \"$pid\"; \
                 n=0; while [ -e \"$1/data/postmaster.pid\" ] && [ $n -lt 50 ]; do \
                   sleep 0.1; n=$((n + 1)); done; \
                 rm -rf \"$1\"",
            )
            .arg("watchdog")
            .arg(folder.path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the watchdog")?;
        let port = if builder.tcp {
            std::net::TcpListener::bind(("127.0.0.1", 0))?
                .local_addr()?
                .port()
        } else {
            5432
        };
        Ok(Cluster {
            tree,
            folder,
            port,
            builder,
            server: None,
            watchdog,
            expected_faults: Vec::new(),
        })
    }

    fn configure(&self, builder: &Builder) -> Result<()> {
        let mut lines = vec![
            (
                "unix_socket_directories",
                self.folder.path().display().to_string(),
            ),
            ("port", self.port.to_string()),
            (
                "listen_addresses",
                if builder.tcp { "127.0.0.1" } else { "" }.to_owned(),
            ),
            ("fsync", "off".to_owned()),
            ("max_connections", "100".to_owned()),
            ("shared_buffers", "64MB".to_owned()),
            ("max_wal_size", "4GB".to_owned()),
            ("logging_collector", "off".to_owned()),
            ("log_line_prefix", "%m [%p] %b ".to_owned()),
            ("lc_messages", "C".to_owned()),
            ("TimeZone", "UTC".to_owned()),
        ];
        if builder.preload {
            lines.push(("shared_preload_libraries", "laser".to_owned()));
        }
        let settings = builder
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()));
        let mut file = OpenOptions::new()
            .append(true)
            .open(self.data().join("postgresql.conf"))?;
        for (name, value) in lines.into_iter().chain(settings) {
            writeln!(file, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        Ok(())
    }

    /// Appends a setting to postgresql.conf; [`Cluster::reload`] or [`Cluster::restart`] applies it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let mut file = OpenOptions::new()
            .append(true)
            .open(self.data().join("postgresql.conf"))?;
        writeln!(file, "{name} = '{}'", value.replace('\'', "''"))?;
        Ok(())
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The folder with the Unix socket (`host=` of a connection string).
    pub fn socket(&self) -> &Path {
        self.folder.path()
    }

    /// The port that is part of the socket's name, and of TCP when asked for.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A scratch folder of this cluster that the server can read and write.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn scratch(&self) -> Result<PathBuf> {
        let path = self.folder.path().join("scratch");
        if !path.exists() {
            fs::create_dir(&path)?;
            Account::own(self.tree.account(), &path)?;
        }
        Ok(path)
    }

    /// Starts the server and waits until it takes connections.
    ///
    /// # Errors
    /// With the end of the log, when the server ends or is not ready in time.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.server.is_none(), "the server is running already");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let deadline = Instant::now() + WAIT_TIMEOUT;
        'start: loop {
            let mut server = self
                .tree
                .command("postgres")
                .arg("-D")
                .arg(self.data())
                .env_remove("PGDATA")
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log.try_clone()?)
                .process_group(0)
                .spawn()
                .context("starting postgres")?;
            loop {
                if self.ready(server.id()) {
                    self.server = Some(server);
                    return Ok(());
                }
                if server.try_wait()?.is_some() {
                    // After a kill, the old children may need a moment to notice.
                    let old_children = self.log_tail(2000).contains("is still in use");
                    if old_children && Instant::now() < deadline {
                        sleep(Duration::from_millis(100));
                        continue 'start;
                    }
                    bail!("the server did not start:\n{}", self.log_tail(4000));
                }
                if Instant::now() > deadline {
                    let _ = server.kill();
                    let _ = server.wait();
                    bail!("the server is not ready in time:\n{}", self.log_tail(4000));
                }
                sleep(Duration::from_millis(20));
            }
        }
    }

    /// Whether postmaster.pid is of this process and says that connections are taken (what pg_ctl
    /// looks at: line 1 the process, line 8 the status).
    fn ready(&self, pid: u32) -> bool {
        let Ok(text) = fs::read_to_string(self.data().join("postmaster.pid")) else {
            return false;
        };
        let mut lines = text.lines();
        lines.next().and_then(|line| line.trim().parse().ok()) == Some(pid)
            && lines
                .nth(6)
                .is_some_and(|status| matches!(status.trim(), "ready" | "standby"))
    }

    /// Stops the server: `fast` ends sessions and checkpoints, `immediate` is a crash without
    /// SIGKILL.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(&mut self, mode: &str) -> Result<()> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        signal(
            server.id(),
            match mode {
                "smart" => libc::SIGTERM,
                "immediate" => libc::SIGQUIT,
                _ => libc::SIGINT,
            },
        );
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while server.try_wait()?.is_none() {
            if Instant::now() > deadline {
                let _ = server.kill();
                let _ = server.wait();
                bail!("the server did not stop in time:\n{}", self.log_tail(4000));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills the postmaster with SIGKILL. Its children end by themselves soon after;
    /// [`Cluster::start`] waits for that.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn kill9(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    /// Kills one of the server's processes with SIGKILL, and waits until the server has ended all others
    /// and takes connections again.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn crash(&mut self, pid: u32) -> Result<()> {
        const RESTARTS: &str = "all server processes terminated; reinitializing";
        self.expect_fault("was terminated by signal 9");
        let before = self.log().matches(RESTARTS).count();
        signal(pid, libc::SIGKILL);
        // A connection that is made before the server has noticed is one of those that it ends.
        wait_until("the server has ended its processes", || {
            Ok(self.log().matches(RESTARTS).count() > before)
        })?;
        wait_until("the server is back", || {
            Ok(self.config("postgres").connect(NoTls).is_ok())
        })
    }

    /// Lines of the log that contain `text` are what the test wants, whatever fault they tell of.
    pub fn expect_fault(&mut self, text: &str) {
        self.expected_faults.push(text.to_owned());
    }

    /// Stops (fast) and starts again.
    ///
    /// # Errors
    /// As [`Cluster::stop`] and [`Cluster::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.stop("fast")?;
        self.start()
    }

    /// Makes the server read its settings again.
    pub fn reload(&self) {
        if let Some(server) = &self.server {
            signal(server.id(), libc::SIGHUP);
        }
    }

    /// Process id of the postmaster, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Connection settings for a database, as superuser.
    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config
            .host_path(self.socket())
            .port(self.port)
            .user("postgres")
            .dbname(database);
        config
    }

    /// A connection string for libpq's programs.
    pub fn conninfo(&self, database: &str) -> String {
        let socket = self.socket().display();
        format!(
            "host={socket} port={} user=postgres dbname={database}",
            self.port
        )
    }

    /// A session.
    ///
    /// # Errors
    /// With the end of the log, when the server refuses.
    pub fn connect(&self, database: &str) -> Result<Client> {
        self.config(database)
            .connect(NoTls)
            .with_context(|| format!("connecting; the log ends:\n{}", self.log_tail(2000)))
    }

    /// A session whose warnings and notices are kept.
    ///
    /// # Errors
    /// As [`Cluster::connect`].
    pub fn connect_with_notices(&self, database: &str) -> Result<(Client, Notices)> {
        let notices = Notices::default();
        let kept = notices.clone();
        let mut config = self.config(database);
        config.notice_callback(move |notice| {
            kept.0.lock().expect("no holder panics").push(format!(
                "{}: {}",
                notice.severity(),
                notice.message()
            ));
        });
        Ok((config.connect(NoTls)?, notices))
    }

    /// Creates a database with laser in it and connects to it.
    ///
    /// # Errors
    /// As [`Cluster::connect`], or when a statement fails.
    pub fn database(&self, name: &str) -> Result<Client> {
        self.connect("postgres")?
            .batch_execute(&format!("CREATE DATABASE \"{name}\""))?;
        let mut client = self.connect(name)?;
        client.batch_execute("CREATE EXTENSION laser")?;
        Ok(client)
    }

    /// A program of PostgreSQL with this cluster as its default server (`PGHOST`, `PGPORT`,
    /// `PGUSER`), run as the servers' account.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.tree.command(program);
        command
            .env("PGHOST", self.socket())
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", "postgres")
            .env_remove("PGDATABASE")
            .stdin(Stdio::null());
        command
    }

    /// Stops the server, gives every page its checksum, and starts it again.
    ///
    /// # Errors
    /// As [`Cluster::stop`], [`Cluster::run`] and [`Cluster::start`].
    pub fn enable_checksums(&mut self) -> Result<()> {
        self.stop("fast")?;
        let data = self.data().display().to_string();
        self.run(
            "pg_checksums",
            &["--enable", "--no-sync", "--pgdata", &data],
        )?;
        self.start()
    }

    /// Runs a program with arguments and returns its standard output.
    ///
    /// # Errors
    /// With all of its output, when it fails.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let output = self.command(program).args(args).output()?;
        ensure!(
            output.status.success(),
            "{program} {args:?} failed:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// `psql -At`: rows as lines, columns separated by `|`.
    ///
    /// # Errors
    /// With psql's messages, when a statement fails.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let args = [
            "-X",
            "-q",
            "-At",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            database,
            "-c",
            sql,
        ];
        Ok(self.run("psql", &args)?.trim_end_matches('\n').to_owned())
    }

    /// Runs pgbench with a script of its own and returns what it printed.
    ///
    /// # Errors
    /// With its output, when it fails or a client was aborted.
    pub fn pgbench(&self, database: &str, script: &str, args: &[&str]) -> Result<String> {
        let mut file = tempfile::Builder::new()
            .suffix(".sql")
            .tempfile_in(self.scratch()?)?;
        file.write_all(script.as_bytes())?;
        Account::own(self.tree.account(), file.path())?;
        let path = file.path().display().to_string();
        let mut all = vec!["-n", "-f", &path];
        all.extend_from_slice(args);
        all.push(database);
        self.run("pgbench", &all)
    }

    /// Takes a base backup into `folder` (of [`Cluster::scratch`], or a new one the servers'
    /// account can write).
    ///
    /// # Errors
    /// With pg_basebackup's messages.
    pub fn pg_basebackup(&self, folder: &Path, args: &[&str]) -> Result<()> {
        let path = folder.display().to_string();
        let mut all = vec!["--pgdata", &path, "--checkpoint=fast", "--no-sync"];
        all.extend_from_slice(args);
        self.run("pg_basebackup", &all)?;
        Ok(())
    }

    /// A streaming replica of this cluster, started.
    ///
    /// # Errors
    /// When the backup fails or the replica does not start.
    pub fn replica(&self) -> Result<Cluster> {
        let mut replica = Cluster::prepare(self.tree, self.builder.clone())?;
        self.pg_basebackup(
            &replica.data(),
            &["--write-recovery-conf", "--wal-method=stream"],
        )?;
        replica.set(
            "unix_socket_directories",
            &replica.socket().display().to_string(),
        )?;
        replica.set("port", &replica.port.to_string())?;
        replica.start()?;
        Ok(replica)
    }

    /// A new cluster from a copy of this one's data folder while it is stopped.
    ///
    /// # Errors
    /// When this cluster runs, or the copy does not start.
    pub fn copy(&self) -> Result<Cluster> {
        ensure!(
            self.server.is_none(),
            "stop the cluster before its data folder is copied"
        );
        let mut copy = self.start_copy(&self.data())?;
        copy.start()?;
        Ok(copy)
    }

    /// A new cluster recovered from a base backup of this one, with settings that say where the
    /// log is (`restore_command`) and how far to go (`recovery_target_…`), once it takes writes.
    ///
    /// # Errors
    /// When it does not get there.
    pub fn recover(&self, backup: &Path, settings: &[(&str, &str)]) -> Result<Cluster> {
        let mut copy = self.start_copy(backup)?;
        for (name, value) in settings {
            copy.set(name, value)?;
        }
        let signal = copy.data().join("recovery.signal");
        fs::write(&signal, "")?;
        Account::own(self.tree.account(), &signal)?;
        copy.start()?;
        wait_until("the recovery ends", || {
            Ok(copy.psql("postgres", "SELECT pg_is_in_recovery()")? == "f")
        })?;
        Ok(copy)
    }

    /// A cluster with a copy of a data folder, not started.
    fn start_copy(&self, data: &Path) -> Result<Cluster> {
        let copy = Cluster::prepare(self.tree, self.builder.clone())?;
        let output = Account::command(self.tree.account(), "cp")
            .arg("-a")
            .arg(data)
            .arg(copy.data())
            .output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        copy.set(
            "unix_socket_directories",
            &copy.socket().display().to_string(),
        )?;
        copy.set("port", &copy.port.to_string())?;
        Ok(copy)
    }

    /// Waits until `replica` has replayed everything that this cluster has written.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn wait_for_replica(&self, replica: &Cluster) -> Result<()> {
        // Maintenance of an index has no transaction id, so its records are flushed with the next
        // commit that has one.
        self.psql(
            "postgres",
            "SELECT pg_logical_emit_message(true, 'laser', '')",
        )?;
        let lsn = self.psql("postgres", "SELECT pg_current_wal_flush_lsn()")?;
        wait_until("the replica catches up", || {
            let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{lsn}'");
            Ok(replica.psql("postgres", &sql)? == "t")
        })
    }

    /// Promotes a replica and waits until it takes writes.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn promote(&self) -> Result<()> {
        self.psql("postgres", "SELECT pg_promote()").map(drop)
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        fs::read(self.log_path())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// About the last `bytes` of the log.
    fn log_tail(&self, bytes: usize) -> String {
        let log = self.log();
        let mut from = log.len().saturating_sub(bytes);
        while !log.is_char_boundary(from) {
            from += 1;
        }
        log[from..].to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log ends:\n{}", self.log_tail(4000));
        }
        let _ = self.stop("immediate");
        let log = self.log();
        let _ = fs::remove_dir_all(self.folder.path());
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
        let faults = log::faults(&log, &self.expected_faults);
        if !faults.is_empty() {
            let faults = faults.join("\n");
            if std::thread::panicking() {
                eprintln!("--- faults in the server's log:\n{faults}");
            } else {
                panic!("faults in the server's log:\n{faults}");
            }
        }
    }
}

/// Polls `done` until it says yes.
///
/// # Errors
/// When `done` fails, or says no for two minutes.
pub fn wait_until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !done()? {
        ensure!(Instant::now() < deadline, "waited in vain until {what}");
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Sends a signal to a process that this harness has started.
pub fn signal(pid: u32, signal: i32) {
    let Ok(pid) = i32::try_from(pid) else { return };
    // SAFETY: kill(2) has no memory effects; pid is positive, so a single process is meant.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Whether a process exists (a zombie does not count).
pub fn process_exists(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .trim_start()
            .starts_with('Z')
    })
}
