//! What `laser_index_maintenance` shows.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::Oid;
use pgrx::prelude::*;

use super::super::rights::sees_statistics;
use super::state::{self, State};
use crate::pg::encoding::to_server;

fn time(at: i64) -> Option<TimestampWithTimeZone> {
    TimestampWithTimeZone::try_from(at).ok()
}

/// Rows of all databases: what a worker does, and each index that is put off. Of indexes that are none of the
/// role's business there is only that there is something.
#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_index_maintenance() -> TableIterator<
    'static,
    (
        name!(pid, Option<i32>),
        name!(datid, Oid),
        name!(indexrelid, Option<Oid>),
        name!(index, Option<String>),
        name!(phase, Option<String>),
        name!(tuples_done, Option<i64>),
        name!(tuples_total, Option<i64>),
        name!(started_at, Option<TimestampWithTimeZone>),
        name!(failures, Option<i32>),
        name!(last_error, Option<String>),
        name!(failed_at, Option<TimestampWithTimeZone>),
        name!(next_try, Option<TimestampWithTimeZone>),
    ),
> {
    let mut rows = Vec::new();
    for database in state::databases() {
        let worker = state::worker_of(database);
        let state = State::read(database);
        let datid = Oid::from(database);
        let hidden = (
            worker, datid, None, None, None, None, None, None, None, None, None, None,
        );
        match &state.work {
            _ if worker.is_none() => {}
            Some(w) if sees_statistics(datid, Oid::from(w.index)) => rows.push((
                worker,
                datid,
                Some(Oid::from(w.index)),
                Some(to_server(&w.name)),
                Some(w.phase.clone()),
                Some(w.done as i64),
                Some(w.total as i64),
                time(w.started),
                None,
                None,
                None,
                None,
            )),
            Some(_) => rows.push(hidden.clone()),
            None => {
                let mut idle = hidden.clone();
                idle.4 = Some("idle".to_owned());
                rows.push(idle);
            }
        }
        for p in &state.deferred {
            if sees_statistics(datid, Oid::from(p.index)) {
                let failed = p.failures > 0;
                let phase = if failed {
                    "put off"
                } else {
                    "waiting for lock"
                };
                rows.push((
                    worker,
                    datid,
                    Some(Oid::from(p.index)),
                    Some(to_server(&p.name)),
                    Some(phase.to_owned()),
                    None,
                    None,
                    None,
                    failed.then_some(p.failures as i32),
                    failed.then(|| to_server(&p.error)),
                    failed.then(|| time(p.failed)).flatten(),
                    time(p.until),
                ));
            } else {
                rows.push(hidden.clone());
            }
        }
    }
    TableIterator::new(rows)
}
