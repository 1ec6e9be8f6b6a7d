//! `laser-encoder`: the process that holds the models and embeds texts for PostgreSQL sessions.
//! The extension's background worker starts it; it can also be run by hand.

mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use laser_encoder::{DeviceChoice, LoadOptions, Precision};
use signal_hook::consts::{SIGQUIT, SIGTERM};

/// Serves sentence embeddings over a Unix socket.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Path of the socket; a file that nobody listens on is replaced
    #[arg(long)]
    socket: PathBuf,
    /// Folder with model folders; may be given several times, earlier ones win
    #[arg(long, required = true)]
    model_path: Vec<PathBuf>,
    /// Name of the default model [default: the one that ships with laser]
    #[arg(long, default_value = "", hide_default_value = true)]
    default_model: String,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Threads, and processors that all threads of the process share; 0: one a core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Megabytes of models kept in memory, least recently used ones are dropped; 0: no limit
    #[arg(long, default_value_t = 0)]
    memory: u64,
    /// auto, f32, bf16 or i8
    #[arg(long, default_value = "auto")]
    precision: Precision,
    /// Texts that may wait before sessions get an error
    #[arg(long, default_value_t = 10_000)]
    queue: usize,
    /// Times that the process was restarted, for the status
    #[arg(long, default_value_t = 0)]
    restarts: u64,
    /// Standard input is a file in which the process notes what it works on, for the next one
    #[arg(long)]
    record: bool,
    /// The last process was ended because it hung
    #[arg(long)]
    hung: bool,
    /// Process id of the parent, with whose death the encoder ends
    #[arg(long)]
    parent: Option<u32>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(parent) = arguments.parent {
        match server::die_with_parent(parent) {
            Ok(true) => {}
            Ok(false) => return ExitCode::SUCCESS,
            Err(e) => {
                server::log(&format!("could not tie the process to its parent: {e}"));
                return ExitCode::FAILURE;
            }
        }
    }
    server::prepare_process();
    if let Err(e) = server::bound_processors(arguments.threads) {
        server::log(&format!(
            "could not bound the processors of the encoder: {e}"
        ));
    }
    if let Err(e) = end_on_signals(arguments.socket.clone()) {
        server::log(&format!("could not install signal handlers: {e}"));
        return ExitCode::FAILURE;
    }
    let listener = match server::bind(&arguments.socket) {
        Ok(listener) => listener,
        Err(e) => {
            server::log(&format!(
                "could not open socket \"{}\": {e}",
                arguments.socket.display()
            ));
            return ExitCode::FAILURE;
        }
    };
    let options = server::Options {
        socket: arguments.socket,
        model_path: arguments.model_path,
        default_model: arguments.default_model,
        load: LoadOptions {
            device: arguments.device,
            precision: arguments.precision,
            threads: arguments.threads,
        },
        memory_limit: arguments.memory << 20,
        queue_limit: arguments.queue,
        restarts: arguments.restarts,
        record: arguments.record.then(record).flatten(),
        hung: arguments.hung,
    };
    let result = server::Server::new(listener, options).and_then(|mut server| {
        // The worker waits for this line.
        println!("ready");
        server.run()
    });
    if let Err(e) = result {
        server::log(&format!("the encoder ends: {e}"));
    }
    ExitCode::FAILURE
}

/// The file that standard input is.
fn record() -> Option<std::fs::File> {
    use std::os::fd::AsFd;
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    input.ok().map(std::fs::File::from)
}

/// Removes the socket file and ends the process on SIGTERM and SIGQUIT, at once and whatever the
/// other threads do: nothing of the process outlives it.
fn end_on_signals(socket: PathBuf) -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGQUIT])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.forever().next().is_some() {
                let _ = std::fs::remove_file(&socket);
                server::exit_now(0);
            }
        })?;
    Ok(())
}
