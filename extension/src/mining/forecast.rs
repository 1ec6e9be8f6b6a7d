//! What a search of all pairs will take, said once a function.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, function_name, pg_sys};

/// How long pairs have been compared when it can be told.
const AFTER: Duration = Duration::from_secs(2);
/// What must still be ahead to be worth a notice, in seconds.
const WORTH: f64 = 30.0;

/// The forecast of a function that is running.
#[derive(Debug, Default)]
pub struct Forecast {
    /// When the first pairs of a search had been compared, and how many.
    first: Option<(Instant, u64)>,
    last: u64,
    is_said: bool,
    /// Whether the function has a way that compares less.
    pub has_other_method: bool,
}

impl Forecast {
    /// Another search begins. What it reads and prepares before it compares anything tells nothing of its time.
    pub fn begin(&mut self) {
        (self.first, self.last) = (None, 0);
    }

    /// Looks at how far the search is, and says what is ahead if that is much.
    pub fn look(&mut self, done: u64, total: u64) {
        // Pairs are counted many at a time: what was counted is up to date just then.
        if self.is_said || done <= self.last {
            return;
        }
        self.last = done;
        let &mut (began, first) = self.first.get_or_insert_with(|| (Instant::now(), done));
        let elapsed = began.elapsed();
        if elapsed < AFTER || done == first {
            return;
        }
        let left =
            elapsed.as_secs_f64() * total.saturating_sub(done) as f64 / (done - first) as f64;
        if left >= WORTH && takes_a_message() {
            self.is_said = true;
            self.say(total, left);
        }
    }

    fn say(&self, total: u64, left: f64) {
        let hint = "laser_mining_progress shows how far it is.";
        let hint = match self.has_other_method {
            true => format!("{hint} method => 'approximate' may compare less."),
            false => hint.to_owned(),
        };
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
            format!(
                "comparing {:.3e} pairs of rows will take about {} more",
                total as f64,
                in_words(left)
            ),
            function_name!(),
        )
        .set_hint(hint)
        .report(PgLogLevel::NOTICE);
    }
}

/// A time from seconds.
fn in_words(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} seconds"),
        ..7_200.0 => format!("{:.0} minutes", seconds / 60.0),
        ..172_800.0 => format!("{:.0} hours", seconds / 3_600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// Whether the client can be told something without waiting for it: while it is waited for, the session may be ended, and threads
/// that search would not know.
fn takes_a_message() -> bool {
    // SAFETY: the session's connection, which processes without a client lack, and whose first member is its socket in all versions
    // (`struct Port` in src/include/libpq/libpq-be.h); poll looks at that without waiting.
    unsafe {
        let port: *const libc::c_int = pg_sys::MyProcPort.cast();
        port.as_ref().is_none_or(|&fd| {
            let mut socket = libc::pollfd {
                fd,
                events: libc::POLLOUT,
                revents: 0,
            };
            libc::poll(&raw mut socket, 1, 0) == 1 && socket.revents & libc::POLLOUT != 0
        })
    }
}
