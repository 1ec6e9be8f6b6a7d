//! Work that nobody waits for, done by one thread that is there while there is any.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::spawn;

/// Pieces of work that wait for a thread. It is made for the first one, and ends when none is left.
#[derive(Debug)]
pub struct Queue<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    at_work: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Queue<T> {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                at_work: false,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `work` where no more than `most` wait afterwards, and makes the thread where there is none: it calls `run`, which is
    /// to take from this queue until [`Queue::next`] has nothing more. Returns whether the thread is there and has it; without
    /// memory for one or the other it has not, and what waited is dropped with it where there is no thread.
    pub fn add(
        &self,
        work: impl ExactSizeIterator<Item = T>,
        most: usize,
        name: &str,
        run: fn(),
    ) -> bool {
        let mut state = self.state();
        if work.len() > most.saturating_sub(state.waiting.len())
            || state.waiting.try_reserve(work.len()).is_err()
        {
            return false;
        }
        state.waiting.extend(work);
        if state.at_work {
            return true;
        }
        state.at_work = true;
        // Whoever makes a thread waits until it runs, and it may look at the queue at once.
        drop(state);
        let is_made = spawn(name, run).is_ok();
        if !is_made {
            let mut state = self.state();
            state.at_work = false;
            state.waiting = VecDeque::new();
        }
        is_made
    }

    /// The next piece for the thread, which ends where there is none: [`Queue::add`] makes another.
    pub fn next(&self) -> Option<T> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        state.at_work = next.is_some();
        next
    }

    /// As [`Queue::next`], for a thread that goes on where there is none.
    pub fn next_if_any(&self) -> Option<T> {
        self.state().waiting.pop_front()
    }

    /// Whether there is a thread.
    pub fn is_at_work(&self) -> bool {
        self.state().at_work
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    type Reply = (u32, mpsc::Sender<u32>);

    static QUEUE: Queue<Reply> = Queue::new();

    fn run() {
        while let Some((n, reply)) = QUEUE.next() {
            reply.send(n).unwrap();
            if n == 0 {
                // Long enough for others to be added meanwhile.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    #[test]
    fn one_thread_after_another_does_all_in_order() {
        let (sender, receiver) = mpsc::channel();
        let work = |from: u32, to: u32| {
            let sender = sender.clone();
            (from..to)
                .map(|n| (n, sender.clone()))
                .collect::<Vec<_>>()
                .into_iter()
        };
        for _ in 0..3 {
            assert!(QUEUE.add(work(0, 2), 10, "test", run));
            assert_eq!(receiver.recv(), Ok(0));
            assert!(QUEUE.is_at_work());
            // One waits already.
            assert!(!QUEUE.add(work(2, 12), 10, "test", run));
            assert!(QUEUE.add(work(2, 11), 10, "test", run));
            for n in 1..11 {
                assert_eq!(receiver.recv(), Ok(n));
            }
            while QUEUE.is_at_work() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_thread_may_go_on_without_work() {
        static IDLE: Queue<u32> = Queue::new();
        static SEEN: Mutex<Vec<Option<u32>>> = Mutex::new(Vec::new());
        fn run() {
            SEEN.lock().unwrap().push(IDLE.next_if_any());
            SEEN.lock().unwrap().push(IDLE.next_if_any());
            assert!(IDLE.is_at_work());
            SEEN.lock().unwrap().push(IDLE.next());
        }
        assert!(IDLE.add([7].into_iter(), 1, "test", run));
        while IDLE.is_at_work() {
            std::thread::yield_now();
        }
        assert_eq!(*SEEN.lock().unwrap(), [Some(7), None, None]);
    }
}
