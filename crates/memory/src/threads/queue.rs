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

    /// Whether there is a thread.
    pub fn is_at_work(&self) -> bool {
        self.state().at_work
    }

    /// The next piece for the thread, which ends where there is none: [`Queue::add`] makes another.
    pub fn next(&self) -> Option<T> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.end();
        }
        next
    }

    /// As [`Queue::next`], for a thread that goes on where there is none.
    pub fn next_if_any(&self) -> Option<T> {
        self.state().waiting.pop_front()
    }
}

impl<T> State<T> {
    fn end(&mut self) {
        self.at_work = false;
        // Its room as well: once there was much to do, and that may not come again.
        self.waiting = VecDeque::new();
    }
}

impl<T: Send + 'static> Queue<T> {
    /// Adds `work`, all of it or, where more than `most` pieces would wait, nothing. Where there is no thread one is made, which calls
    /// `run`: it is to take from this queue until [`Queue::next`] has nothing more. Work for which there is no memory, or no thread, is
    /// dropped.
    pub fn add(
        &'static self,
        work: impl ExactSizeIterator<Item = T>,
        most: usize,
        name: &str,
        run: fn(),
    ) {
        let mut state = self.state();
        if work.len() > most.saturating_sub(state.waiting.len())
            || state.waiting.try_reserve(work.len()).is_err()
        {
            return;
        }
        state.waiting.extend(work);
        if state.at_work {
            return;
        }
        state.at_work = true;
        // Whoever makes a thread waits until it runs, and it may look at the queue at once.
        drop(state);
        let run = move || {
            let _end = End(self);
            run();
        };
        if spawn(name, run).is_err() {
            self.state().end();
        }
    }
}

/// The end of a thread, also where it unwinds: then what waits is dropped.
struct End<T: 'static>(&'static Queue<T>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state().end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// What comes of a piece of work: it says its number, and then waits for a word.
    type Piece = (u32, Sender<u32>, Receiver<()>);

    fn pieces(
        numbers: std::ops::Range<u32>,
        sender: &Sender<u32>,
    ) -> (Vec<Piece>, Vec<Sender<()>>) {
        let piece = |n| {
            let (go, wait) = channel();
            ((n, sender.clone(), wait), go)
        };
        numbers.map(piece).unzip()
    }

    fn end_of<T>(queue: &Queue<T>) {
        while queue.is_at_work() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_thread_after_another_does_all_in_order() {
        static QUEUE: Queue<Piece> = Queue::new();
        fn run() {
            while let Some((n, say, wait)) = QUEUE.next() {
                say.send(n).unwrap();
                let _ = wait.recv();
            }
        }
        for _ in 0..3 {
            let (sender, receiver) = channel();
            let (first, go_first) = pieces(0..1, &sender);
            let (too_many, _) = pieces(1..12, &sender);
            let (others, go_others) = pieces(1..11, &sender);
            QUEUE.add(first.into_iter(), 10, "test", run);
            assert_eq!(receiver.recv(), Ok(0));
            assert!(QUEUE.is_at_work());
            QUEUE.add(too_many.into_iter(), 10, "test", run);
            QUEUE.add(others.into_iter(), 10, "test", run);
            drop(go_first);
            for (n, go) in (1..11).zip(go_others) {
                assert_eq!(receiver.recv(), Ok(n));
                drop(go);
            }
            end_of(&QUEUE);
        }
    }

    #[test]
    fn a_thread_may_go_on_without_work() {
        static QUEUE: Queue<u32> = Queue::new();
        static SEEN: Mutex<Vec<Option<u32>>> = Mutex::new(Vec::new());
        fn run() {
            let see = |next| SEEN.lock().unwrap().push(next);
            see(QUEUE.next_if_any());
            see(QUEUE.next_if_any());
            assert!(QUEUE.is_at_work());
            see(QUEUE.next());
        }
        QUEUE.add([7].into_iter(), 1, "test", run);
        end_of(&QUEUE);
        assert_eq!(*SEEN.lock().unwrap(), [Some(7), None, None]);
    }

    #[test]
    fn another_thread_comes_after_one_that_has_unwound() {
        static QUEUE: Queue<Piece> = Queue::new();
        fn run() {
            while let Some((n, say, _)) = QUEUE.next() {
                if n == 0 {
                    std::panic::resume_unwind(Box::new(()));
                }
                say.send(n).unwrap();
            }
        }
        let (sender, receiver) = channel();
        QUEUE.add(pieces(0..1, &sender).0.into_iter(), 10, "test", run);
        end_of(&QUEUE);
        QUEUE.add(pieces(5..6, &sender).0.into_iter(), 10, "test", run);
        assert_eq!(receiver.recv(), Ok(5));
    }
}
