//! How a thread begins.
//!
//! ```text
//! whoever makes it                       the thread
//! ----------------                       ----------
//! NEW, pthread_create                    has a stack, and no thread-local variable of ours
//! parks                                  asks for ROOM and gives it back to its heap
//!                                          no room, no heap: NO_MEMORY, unparks, returns
//!                                          room:    makes its variables from it, takes the body,
//! NO_MEMORY: joins, drops the body                  RUNS, unparks, calls the body
//! RUNS: has a thread
//! ```
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::exit_hook::{INTERVAL, exit_if_thread_failed};
use super::signals::SignalsBlocked;

/// Bytes of a stack.
const STACK: usize = 2 << 20;
/// Bytes that a thread must be able to have for its variables: some kilobytes, and as much again for what it
/// allocates before its maker goes on.
const ROOM: usize = 64 << 10;
/// Bytes of a thread's name, with the zero at its end (pthread_setname_np(3)).
const NAME: usize = 16;

const NEW: u8 = 0;
const RUNS: u8 = 1;
const NO_MEMORY: u8 = 2;

/// Starts a thread that receives no signals: the server's handlers must run on its own thread. Of a thread
/// that is dropped without being joined nobody learns the result.
///
/// # Errors
/// What the operating system says; no memory for the thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Thread<T>> {
    // SAFETY: what `work` and T refer to lives for ever.
    unsafe { spawn_unchecked(name, work, ()) }
}

/// As [`spawn`]. `end` is dropped when the thread is done with the work and its result, which is then the
/// handle's alone.
///
/// # Safety
/// Whatever `work` and `T` refer to lives until `end` is dropped, and as long as the handle.
pub unsafe fn spawn_unchecked<T: Send>(
    name: &str,
    work: impl FnOnce() -> T + Send,
    end: impl Send,
) -> io::Result<Thread<T>> {
    let result: Arc<Mutex<Option<std::thread::Result<T>>>> = Arc::default();
    let given = result.clone();
    let body: Box<dyn FnOnce() + Send> = Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(work));
        *given.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        drop(given);
        drop(end);
    });
    // SAFETY: only the lifetime differs, for which the caller answers.
    let body = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Body>(body) };
    let id = start(name, body)?;
    Ok(Thread { id, result })
}

/// A thread that was started.
pub struct Thread<T> {
    id: libc::pthread_t,
    /// Of the work, once it has ended.
    result: Arc<Mutex<Option<std::thread::Result<T>>>>,
}

impl<T> Thread<T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// The panic of its work.
    pub fn join(self) -> std::thread::Result<T> {
        let thread = ManuallyDrop::new(self);
        // SAFETY: a thread that nobody has joined or detached: that takes this value away.
        unsafe { libc::pthread_join(thread.id, ptr::null_mut()) };
        // SAFETY: `thread` is not dropped, and nobody uses its field after this.
        let result = unsafe { ptr::read(&raw const thread.result) };
        let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or_else(|| {
            Err(Box::new("a thread ended without its work") as Box<dyn Any + Send>)
        })
    }

    /// Whether its work has ended.
    pub fn is_finished(&self) -> bool {
        self.result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }
}

impl<T> Drop for Thread<T> {
    fn drop(&mut self) {
        // SAFETY: as in `join`.
        unsafe { libc::pthread_detach(self.id) };
    }
}

type Body = Box<dyn FnOnce() + Send>;

/// What a thread and its maker share until it runs.
struct Start {
    state: AtomicU8,
    /// Of the thread that waits.
    maker: std::thread::Thread,
    name: [u8; NAME],
    body: Mutex<Option<Body>>,
}

fn start(name: &str, body: Body) -> io::Result<libc::pthread_t> {
    let mut bytes = [0; NAME];
    let length = name.floor_char_boundary(NAME - 1);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    let start = Arc::new(Start {
        state: AtomicU8::new(NEW),
        maker: std::thread::current(),
        name: bytes,
        body: Mutex::new(Some(body)),
    });
    exceptions();
    let _blocked = SignalsBlocked::new();
    let argument = Arc::into_raw(start.clone());
    let mut id = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are initialised before they are used and destroyed; `begin` is given the
    // reference that it takes over, or it is taken back.
    let id = unsafe {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let mut error = libc::pthread_attr_init(attributes.as_mut_ptr());
        if error == 0 {
            error = libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
            if error == 0 {
                let argument = argument.cast_mut().cast();
                error = libc::pthread_create(id.as_mut_ptr(), attributes.as_ptr(), begin, argument);
            }
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        if error != 0 {
            drop(Arc::from_raw(argument));
            return Err(io::Error::from_raw_os_error(error));
        }
        id.assume_init()
    };
    // However late it comes: it answers once it has asked for memory, and waits for nothing else.
    loop {
        match start.state.load(Ordering::Acquire) {
            NO_MEMORY => {
                // SAFETY: the thread returns without having done anything; its reference of `start`
                // stays for this one to drop, since that frees memory and drops the body.
                unsafe {
                    libc::pthread_join(id, ptr::null_mut());
                    drop(Arc::from_raw(argument));
                }
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            NEW => {
                std::thread::park_timeout(INTERVAL);
                exit_if_thread_failed();
            }
            _ => return Ok(id),
        }
    }
}

/// The first function of a thread. Until it has seen that there is room it touches no thread-local variable
/// but the C library's own, which come with the stack: no allocation of Rust's, no lock, no panic.
extern "C" fn begin(argument: *mut c_void) -> *mut c_void {
    let argument: *const Start = argument.cast();
    // SAFETY: plain allocation; the block is not used. It stays in the heap that the thread has been
    // given by asking for it: the C library trims only larger ones.
    let mut room = unsafe { libc::malloc(ROOM) };
    if is_mapping(room) {
        share_heaps();
        // SAFETY: what malloc has given is given back, and asked for once more.
        room = unsafe {
            libc::free(room);
            libc::malloc(ROOM)
        };
    }
    if room.is_null() || is_mapping(room) {
        // SAFETY: the maker has a reference of its own until it has joined this thread. Setting the
        // state and waking the maker are an atomic store each and a system call.
        let start = unsafe { &*argument };
        let maker = &start.maker;
        // SAFETY: what malloc has given, or null.
        unsafe { libc::free(room) };
        start.state.store(NO_MEMORY, Ordering::Release);
        maker.unpark();
        return ptr::null_mut();
    }
    // SAFETY: what malloc has given. The optimiser may leave out a pair of calls that nobody sees.
    unsafe { libc::free(std::hint::black_box(room)) };
    touch_variables();
    // SAFETY: the reference that was given to this thread.
    let start = unsafe { Arc::from_raw(argument) };
    // SAFETY: the name ends with a zero.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), start.name.as_ptr().cast()) };
    let body = start
        .body
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    start.state.store(RUNS, Ordering::Release);
    start.maker.unpark();
    drop(start);
    if let Some(body) = body {
        body();
    }
    ptr::null_mut()
}

/// Whether a block of [`ROOM`] bytes is a mapping of its own, which goes back to the system when it is freed: the C
/// library gives those to a thread for which it could not make a heap (some 64 MB of addresses), and would give one for
/// each of its variables, if it can be had by then. Null is none.
fn is_mapping(block: *mut c_void) -> bool {
    // A mapping is whole pages; what is in a heap is larger than what was asked for by some words.
    // SAFETY: a block that was allocated.
    cfg!(target_env = "gnu") && unsafe { libc::malloc_usable_size(block) } > ROOM + 1024
}

/// Has threads that begin from now on use the heaps that there are: one more cannot be had.
fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number, under a lock of the C library's.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Makes the calling thread's copy of this library's variables and of C++'s runtime, which the first
/// exception would make, most likely one that says that there is no memory; and of the list of what
/// is dropped at the thread's end.
#[inline(never)]
fn touch_variables() {
    struct Dropped(Cell<u8>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(0);
        }
    }
    thread_local! {
        static TOUCHED: Dropped = const { Dropped(Cell::new(0)) };
    }
    TOUCHED.with(|touched| touched.0.set(1));
    if let Some(exceptions) = exceptions() {
        // SAFETY: it has no argument and only gives an address.
        unsafe { exceptions() };
    }
}

/// The state that C++'s runtime keeps of a thread's exceptions.
type Exceptions = unsafe extern "C" fn() -> *mut c_void;

/// The function of C++'s ABI (Itanium C++ ABI, 2.2.2) that gives [`Exceptions`], where its runtime is loaded.
fn exceptions() -> Option<Exceptions> {
    static FOUND: OnceLock<Option<Exceptions>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: the name ends with a zero.
        let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_get_globals".as_ptr()) };
        // SAFETY: a function of this name has this type; null is None.
        unsafe { std::mem::transmute::<*mut c_void, Option<Exceptions>>(symbol) }
    })
}
