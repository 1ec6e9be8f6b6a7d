//! Attacks: what roles without rights, hostile objects and hostile values can do through laser.
//!
//! Runs are bounded for CI; `LASER_ADVERSARY_SECONDS` lets the ones with random values go on for as
//! long as that.

mod embed_queue;
mod embed_table;
mod messages;
mod mining;
mod owners;
mod planted;
mod roles;
