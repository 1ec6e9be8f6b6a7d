//! Threads beside the server's own.
//!
//! A thread needs more than its stack to run: the C library makes its copy of a loaded library's
//! thread-local variables when the thread first touches one, and ends the *process* where there is no
//! memory for that (`exit(127)`, which the server takes for a crash). `std::thread` touches its own before
//! anything else can be done. So threads are made here ([`start`]): a new one looks for room before it
//! touches any such variable, and is not made where there is none; whoever makes it waits until it has
//! touched them; and where several are made none works, which takes memory, before the last one runs
//! ([`Gate`]).

mod exit_hook;
mod gate;
mod queue;
mod scope;
mod signals;
mod start;

pub use exit_hook::set_exit_hook;
pub use gate::Gate;
pub use queue::Queue;
pub use scope::{Scope, ScopedThread, scope};
pub use start::{Thread, spawn};

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::signals::is_blocked;
    use super::*;

    #[test]
    fn results_and_panics_come_back() {
        assert_eq!(spawn("test", || 7).unwrap().join().unwrap(), 7);
        let thread = spawn("test", || -> () { std::panic::resume_unwind(Box::new(8)) }).unwrap();
        let panic = thread.join().unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&8));
    }

    #[test]
    fn a_thread_has_its_name() {
        let name = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let long = "a name that is too long";
        assert_eq!(spawn("test", name).unwrap().join().unwrap(), "test\n");
        assert_eq!(
            spawn(long, name).unwrap().join().unwrap(),
            "a name that is \n"
        );
    }

    #[test]
    fn a_thread_that_nobody_joins_goes_on() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel();
        let thread = spawn("test", move || {
            wait.recv().unwrap();
            sender.send(7).unwrap();
        });
        assert!(!thread.as_ref().unwrap().is_finished());
        drop(thread);
        go.send(()).unwrap();
        assert_eq!(receiver.recv(), Ok(7));
    }

    #[test]
    fn none_works_before_all_run() {
        let (gate, made, gone) = (
            Gate::default(),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let closed = gate.close();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (gate, made, gone) = (gate.clone(), made.clone(), gone.clone());
                let seen = made.clone();
                let thread = spawn("test", move || {
                    gate.pass();
                    gone.fetch_add(1, Ordering::SeqCst);
                    seen.load(Ordering::SeqCst)
                });
                made.fetch_add(1, Ordering::SeqCst);
                thread.unwrap()
            })
            .collect();
        assert_eq!(gone.load(Ordering::SeqCst), 0);
        drop(closed);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 3);
        }
    }

    #[test]
    fn threads_receive_no_signals() {
        let is_term_blocked = || is_blocked(libc::SIGTERM);
        assert!(spawn("test", is_term_blocked).unwrap().join().unwrap());
        let value = 7;
        let scoped = scope(|scope| {
            let thread = scope.spawn("test", || (is_term_blocked(), value));
            thread.unwrap().join().unwrap()
        });
        assert_eq!(scoped, (true, 7));
        assert!(!is_term_blocked());
    }

    #[test]
    fn a_thread_hears_of_what_it_cannot_read() {
        let is_bus_blocked = || is_blocked(libc::SIGBUS);
        assert!(!spawn("test", is_bus_blocked).unwrap().join().unwrap());
    }
}
