//! Embedding through SQL when things go wrong: the encoder process, its worker, sessions and
//! models die, hang, vanish or are broken.
//!
//! A stopped process (SIGSTOP) stands for an encoder that takes long: what happens then does not
//! depend on the speed of the machine.

mod deaths;
mod models;
mod process;
mod sessions;
mod socket;
mod support;
mod table;
mod texts;
