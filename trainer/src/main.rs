//! The program `laser`.

fn main() -> std::process::ExitCode {
    laser_trainer::cli::main()
}
