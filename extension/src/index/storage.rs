//! Where the server keeps a relation, and where its files of segments are.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;

use pgrx::pg_sys;

/// Folder for what ends with the server, relative to the data directory: files in the making, and a folder for each
/// database, in which each temporary relation has one. The server empties it at every start and after a crash.
pub const PASSING: &str = "base/pgsql_tmp/pgsql_tmp.laser";

/// Folder for files of segments of other relations, which outlive the server, in the same way. Its name is one that base
/// backups and pg_rewind leave out.
pub const LASTING: &str = "laser/pgsql_tmp_segments";

/// The folder of a database's files in one of the two.
pub fn database_folder(folder: &str, database: u32) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{folder}/{database:x}"))
}

/// The backend of what is no temporary relation (`InvalidBackendId`).
pub const NO_BACKEND: i32 = -1;

/// Identity of a relation's storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Storage {
    pub database: u32,
    pub tablespace: u32,
    pub relation: u32,
    pub backend: i32,
}

/// Where the server keeps a relation.
#[cfg(any(feature = "pg14", feature = "pg15"))]
type Locator = pg_sys::RelFileNode;
#[cfg(not(any(feature = "pg14", feature = "pg15")))]
type Locator = pg_sys::RelFileLocator;

impl Storage {
    /// # Safety
    /// `relation` is open.
    pub unsafe fn of(relation: pg_sys::Relation) -> Self {
        // SAFETY: by contract.
        let relation = unsafe { &*relation };
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let locator = &relation.rd_node;
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let locator = &relation.rd_locator;
        Self::at(locator, relation.rd_backend)
    }

    /// That of a backend's relation, or of one that is not temporary ([`NO_BACKEND`]).
    pub fn at(locator: &Locator, backend: i32) -> Self {
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let (database, tablespace, relation) = (locator.dbNode, locator.spcNode, locator.relNode);
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let (database, tablespace, relation) = (locator.dbOid, locator.spcOid, locator.relNumber);
        Self {
            database: database.to_u32(),
            tablespace: tablespace.to_u32(),
            relation: relation.to_u32(),
            backend,
        }
    }

    /// The folder of the relation's files, whose names are the segments' identities.
    pub fn folder(&self) -> impl fmt::Display {
        let Self {
            database,
            tablespace,
            relation,
            backend,
        } = *self;
        let is_temporary = backend != NO_BACKEND;
        let folder = if is_temporary { PASSING } else { LASTING };
        let database = database_folder(folder, database);
        fmt::from_fn(move |f| write!(f, "{database}/{tablespace:x}_{relation:x}_{backend:x}"))
    }

    /// Reads the name of a relation's folder in that of a database.
    pub fn parse(database: u32, name: &str) -> Option<Self> {
        let mut parts = name.split('_').map(|part| u32::from_str_radix(part, 16));
        let mut part = || parts.next()?.ok();
        let (tablespace, relation, backend) = (part()?, part()?, part()?);
        Some(Self {
            database,
            tablespace,
            relation,
            backend: backend as i32,
        })
    }

    /// Whether the relation's own file is gone, or empty, as the file of a dropped relation is
    /// until the next checkpoint.
    pub fn is_gone(&self) -> bool {
        // SAFETY: a pure function of its arguments.
        let path = unsafe {
            pg_sys::GetRelationPath(
                self.database.into(),
                self.tablespace.into(),
                self.relation.into(),
                self.backend,
                pg_sys::ForkNumber::MAIN_FORKNUM,
            )
        };
        // PostgreSQL 18 returns an array, others memory of the current context.
        #[cfg(feature = "pg18")]
        // SAFETY: the array ends with a zero.
        let path = unsafe { CStr::from_ptr(path.str_.as_ptr()) }.to_string_lossy();
        #[cfg(not(feature = "pg18"))]
        // SAFETY: a string of PostgreSQL's own, not used behind its end.
        let path = unsafe {
            let text = CStr::from_ptr(path).to_string_lossy().into_owned();
            pg_sys::pfree(path.cast());
            text
        };
        std::fs::metadata(&*path).map_or(true, |m| m.len() == 0)
    }
}
