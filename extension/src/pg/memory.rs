//! What happens when there is no memory.
//!
//! Rust aborts where an allocation fails, and a backend that aborts takes the server with it. So
//! whatever is as large as a user's data is allocated by `laser-memory`, and the lack of memory is
//! an error ([`or_raise`]). For all the rest, small things, and the larger ones of libraries, there
//! is a last resort in the allocator ([`exhausted`]): the session ends with an error, as FATAL
//! errors of the server end it, and the server goes on.
//!
//! An allocator must not unwind, but it need not return: a FATAL error does neither, it exits after
//! it has given back what the session holds. In a critical section the server makes a PANIC of it,
//! which is what must happen there.
//!
//! Reporting an error takes memory too. The server keeps some for that; pgrx does not: it copies the
//! server's error to where the caller allocates, and an error in that copy begins it again, until the
//! server's stack of errors is full and it panics. So some memory is kept free (the reserve), and given
//! up when the server reports that there is no memory, or when an error is raised here while there is
//! little. It is taken back when the transaction ends. It lies in the heap, not in a mapping of its
//! own: somebody may lower the limit of addresses below what the session has, and then nothing new can
//! be mapped whatever was given up. Where all that is not enough, a second report in a row that there is
//! no memory ends the session, before the server's stack is full.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::hash::Hash;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed};

use laser_memory::OutOfMemory;
use laser_memory::room::can_be_mapped;
use pgrx::{PgSqlErrorCode, pg_sys};

use crate::pg::errors::raise_hint;

/// Blocks of the reserve. They lie side by side: once given up they are one.
const BLOCKS: usize = 18;
/// Bytes of a block: fewer than those for which the allocator makes a mapping, of which it gives up
/// together more than the server's own allocator asks for at least (1 MB).
const BLOCK: usize = 120 << 10;
/// More bytes than reporting an error takes.
const ENOUGH: usize = 256 << 10;
/// More bytes than the server's allocator asks for at once while an error is reported (8 MB): where they
/// can be had, memory is not short.
const MUCH: usize = 16 << 20;
/// Most blocks that are requested in order to get [`BLOCKS`] adjacent ones.
const ATTEMPTS: usize = 64;

/// The first block of the reserve, in which the address of the next one is, and so on; null where there
/// is none.
static KEPT: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());
/// Whether a block behind the first reserve is kept for good.
static PINNED: AtomicBool = AtomicBool::new(false);
/// Reports of the server that there is no memory, since there was a reserve.
static REPORTS: AtomicUsize = AtomicUsize::new(0);
/// The thread that the server runs on; 0 before [`init`].
static MAIN: AtomicUsize = AtomicUsize::new(0);
/// Whether the session is ending because it is out of memory.
static ENDING: AtomicBool = AtomicBool::new(false);
/// Whether a thread beside the server's own has stopped because it is out of memory.
static THREAD_STOPPED: AtomicBool = AtomicBool::new(false);

/// To be called once, on the server's thread; what it makes is inherited by sessions.
pub fn init() {
    MAIN.store(this_thread(), Relaxed);
    laser_memory::threads::set_exit_hook(exit_if_thread_stopped);
    restock();
    // SAFETY: both functions stay where they are, for the life of the process.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_ends), ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_ends), ptr::null_mut());
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        make_room();
        hook(info);
    }));
}

/// Takes the reserve, unless it is there, and sees to it that errors of the server are noticed.
fn restock() {
    notice_errors();
    if !KEPT.load(Relaxed).is_null() {
        return;
    }
    // No vector: there may be no memory.
    let mut blocks = [ptr::null_mut::<libc::c_void>(); ATTEMPTS];
    let (mut found, mut side_by_side) = (0, 0);
    // SAFETY: blocks of the allocator's, which are used by nobody else, freed once, and large enough for
    // an address.
    unsafe {
        while found < ATTEMPTS && side_by_side <= BLOCKS {
            let block = libc::malloc(BLOCK);
            if block.is_null() {
                break;
            }
            // Between two blocks is what the allocator notes of them.
            let next =
                found > 0 && (block as usize).wrapping_sub(blocks[found - 1] as usize) < BLOCK + 64;
            side_by_side = if next { side_by_side + 1 } else { 1 };
            blocks[found] = block;
            found += 1;
        }
        // The last one is kept for good the first time: what is at the end of the heap, and free, the
        // allocator would give back to the system.
        let end = found - usize::from(side_by_side > BLOCKS);
        if end < found && PINNED.swap(true, Relaxed) {
            libc::free(blocks[end]);
        }
        let start = end.saturating_sub(BLOCKS);
        blocks[..start].iter().for_each(|block| libc::free(*block));
        let mut first = ptr::null_mut();
        for &block in &blocks[start..end] {
            block.cast::<*mut libc::c_void>().write(first);
            first = block;
        }
        KEPT.store(first, Relaxed);
    }
    if !KEPT.load(Relaxed).is_null() {
        REPORTS.store(0, Relaxed);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction_ends(_event: pg_sys::XactEvent::Type, _state: *mut c_void) {
    restock();
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn subtransaction_ends(
    _event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _state: *mut c_void,
) {
    restock();
}

/// An entry of the server's stack of error contexts.
struct Noticing(UnsafeCell<pg_sys::ErrorContextCallback>);

// SAFETY: the server's thread alone comes near it.
unsafe impl Sync for Noticing {}

static NOTICING: Noticing = Noticing(UnsafeCell::new(pg_sys::ErrorContextCallback {
    previous: ptr::null_mut(),
    callback: Some(notice_error),
    arg: ptr::null_mut(),
}));

/// Puts an entry at the bottom of the server's stack of error contexts: what is on it is called when
/// an error is reported, before anybody catches it. The server empties the stack when an error ends
/// a statement.
fn notice_errors() {
    // SAFETY: the stack is a list that ends with null; its entries live as long as they are on it.
    // On the server's thread.
    unsafe {
        let own = NOTICING.0.get();
        let mut end = &raw mut pg_sys::error_context_stack;
        while !(*end).is_null() {
            if *end == own {
                return;
            }
            end = &raw mut (**end).previous;
        }
        *end = own;
    }
}

/// Called by the server while it reports an error.
unsafe extern "C-unwind" fn notice_error(_state: *mut c_void) {
    // SAFETY: an error is being reported.
    let code = unsafe { geterrcode() };
    if code == PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN as c_int && thread_stopped() {
        // By `stop_thread`, which has no other way to be heard.
        // SAFETY: as above; the message takes the place of what an administrator is said to have done.
        unsafe {
            errcode(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int);
            errmsg(THE_SESSION_ENDS.as_ptr());
        }
        return;
    }
    if code != PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int
        || ENDING.load(Relaxed)
        // Anybody may raise this code, at any level, and the server does for its shared memory.
        || can_be_mapped(MUCH).is_ok()
    {
        return;
    }
    release_reserve();
    // The first report may be of something that was far too large; one more means that not even
    // reporting works. A session that never had a reserve gets there one report sooner, at worst.
    if REPORTS.fetch_add(1, Relaxed) >= 2 && !ENDING.swap(true, Relaxed) {
        end_session(0);
    }
}

/// Gives up the reserve if there is too little memory for an error to be reported.
fn make_room() {
    if this_thread() != MAIN.load(Relaxed) {
        return;
    }
    // SAFETY: a block that is freed at once.
    unsafe {
        let block = libc::malloc(ENOUGH);
        if block.is_null() {
            release_reserve();
        }
        libc::free(block);
    }
}

/// The value; raises the out-of-memory error of SQL (53200) if there is none.
pub fn or_raise<T>(result: laser_memory::Result<T>) -> T {
    result.unwrap_or_else(|error| raise(error))
}

/// Appends a value; raises the out-of-memory error (53200) if the vector cannot grow.
#[inline]
pub fn push<T>(to: &mut Vec<T>, value: T) {
    or_raise(laser_memory::push(to, value));
}

/// Adds a value to a set, and returns whether it is new; raises the out-of-memory error (53200) if the set cannot grow.
pub fn insert<T: Eq + Hash>(to: &mut HashSet<T>, value: T) -> bool {
    or_raise(laser_memory::reserve(size_of::<T>(), || to.try_reserve(1)));
    to.insert(value)
}

/// The entry of a key, with room reserved for it; raises the out-of-memory error (53200) if the map cannot grow.
pub fn entry<K: Eq + Hash, V>(of: &mut HashMap<K, V>, key: K) -> Entry<'_, K, V> {
    let bytes = size_of::<(K, V)>();
    or_raise(laser_memory::reserve(bytes, || of.try_reserve(1)));
    of.entry(key)
}

/// Raises the out-of-memory error (53200).
#[cold]
pub fn raise(error: OutOfMemory) -> ! {
    raise_hint(
        PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
        error.to_string(),
        "Work on less at a time, or make more memory available to the server.",
    )
}

/// Whether a thread has stopped because it is out of memory and will never end: it must not be waited for.
/// The session has been told to end.
pub fn thread_stopped() -> bool {
    THREAD_STOPPED.load(Relaxed)
}

/// Called by whoever waits for threads: where one has stopped the session ends. Its own thread may wait with
/// interrupts out of reach, while it unwinds after a cancel.
fn exit_if_thread_stopped() {
    if !thread_stopped() {
        return;
    }
    if this_thread() == MAIN.load(Relaxed) {
        if !ENDING.swap(true, Relaxed) {
            end_session(0);
        }
    } else {
        wait_for_the_end();
    }
}

/// Never returns: the process ends.
fn wait_for_the_end() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

fn this_thread() -> usize {
    // SAFETY: a plain question.
    unsafe { libc::pthread_self() as usize }
}

/// Called by the allocator when an allocation fails. Returns to those who can cope
/// with that, and where the process is none of a running server's; else ends the session.
#[cold]
pub fn exhausted(bytes: usize) {
    let main = MAIN.load(Relaxed);
    // SAFETY: reads a variable that is set when the process starts.
    let in_server = main != 0 && unsafe { pg_sys::IsUnderPostmaster };
    if laser_memory::attempting() || !in_server {
        return;
    }
    if this_thread() == main {
        // Out of memory while it ends: the server has to be told by a crash.
        if !ENDING.swap(true, Relaxed) {
            end_session(bytes);
        }
    } else {
        stop_thread(main);
    }
}

#[cfg(target_os = "linux")]
unsafe extern "C" {
    /// The C library's `mmap`: the linker is told to wrap it (`build.rs`).
    fn __real_mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: libc::off_t,
    ) -> *mut c_void;
}

/// All that this library links to, usearch's C++ among it, calls this as `mmap`.
///
/// # Safety
/// As `mmap`.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: by contract.
    let mapped = unsafe { __real_mmap(address, length, protection, flags, file, offset) };
    if mapped == libc::MAP_FAILED && laser_memory::is_unchecked() {
        // The session ends; who made this call would write to nowhere, and end the server.
        exhausted(length);
    }
    mapped
}

/// Gives the reserve back to the allocator, for what the end of a statement or the session needs.
fn release_reserve() {
    let mut block = KEPT.swap(ptr::null_mut(), Relaxed);
    while !block.is_null() {
        // SAFETY: the blocks of `restock`, each of which has the address of the next one.
        unsafe {
            let next = *block.cast::<*mut libc::c_void>();
            libc::free(block);
            block = next;
        }
    }
}

// As the server's headers declare them. pgrx's own way of reporting allocates.
unsafe extern "C" {
    fn geterrcode() -> c_int;
    fn errstart(level: c_int, domain: *const c_char) -> bool;
    fn errcode(code: c_int) -> c_int;
    fn errmsg(format: *const c_char, ...) -> c_int;
    fn errdetail(format: *const c_char, ...) -> c_int;
    fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
}

/// Message of the FATAL error of a session that is out of memory.
const THE_SESSION_ENDS: &CStr = c"out of memory in laser: the session ends";

/// On the server's thread: a FATAL error. Of zero bytes nothing is said.
fn end_session(bytes: usize) {
    release_reserve();
    // SAFETY: the calls that ereport(FATAL) makes, in its order, on the thread that may make them.
    // The last one does not return, and unwinds nothing: the process exits.
    unsafe {
        errstart(pg_sys::FATAL as c_int, ptr::null());
        errcode(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int);
        errmsg(THE_SESSION_ENDS.as_ptr());
        if bytes > 0 {
            errdetail(
                c"Failed on a request of %ld bytes.".as_ptr(),
                c_long::try_from(bytes).unwrap_or(c_long::MAX),
            );
        }
        errfinish(c"memory.rs".as_ptr(), 0, c"end_session".as_ptr());
    }
}

/// On another thread: asks the server's thread to end the session, and never returns.
fn stop_thread(main: usize) -> ! {
    THREAD_STOPPED.store(true, Relaxed);
    release_reserve();
    let message = b"laser: out of memory in a thread: its session ends\n";
    // SAFETY: writes a constant; the signal is the one that ends a session, to the thread that has
    // its handler and that outlives all others.
    unsafe {
        libc::write(2, message.as_ptr().cast(), message.len());
        libc::pthread_kill(main as libc::pthread_t, libc::SIGTERM);
    }
    wait_for_the_end()
}
