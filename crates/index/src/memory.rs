//! A store in memory, for tests: it remembers every committed change, so that a test can go back to
//! any moment at which a crash might have happened.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use crate::error::{IndexError, Result};
use crate::page::{self, BODY};
use crate::store::{PageStore, SET_PAGES, WriteSet};

type Body = Box<[u8]>;

#[derive(Debug, Default)]
struct Inner {
    pages: Vec<Body>,
    free: Vec<u32>,
    log: Vec<Vec<(u32, Body)>>,
}

/// Pages in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

impl MemoryStore {
    /// No pages.
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The pages, one after the other: length of what is used of a body (`u32`, little-endian), then
    /// that many bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for body in &self.inner().pages {
            let used = page::HEADER + page::header(body).len as usize;
            bytes.extend_from_slice(&(used as u32).to_le_bytes());
            bytes.extend_from_slice(&body[..used]);
        }
        bytes
    }

    /// The reverse of [`MemoryStore::to_bytes`]; `None` when the bytes are no such pages.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mut pages: Vec<Body> = Vec::new();
        while let Some((len, rest)) = bytes.split_first_chunk::<4>() {
            let len = u32::from_le_bytes(*len) as usize;
            let mut body: Body = vec![0; BODY].into();
            body.get_mut(..len)?.copy_from_slice(rest.get(..len)?);
            pages.push(body);
            bytes = &rest[len..];
        }
        bytes.is_empty().then(|| Self {
            inner: Mutex::new(Inner {
                pages,
                ..Inner::default()
            }),
        })
    }

    /// Number of committed changes.
    pub fn changes(&self) -> usize {
        self.inner().log.len()
    }

    /// The store as recovery would leave it when the server died after `changes` changes: their
    /// effect, no free space map, and the pages that an unfinished extension left as zeros.
    pub fn crashed_after(&self, changes: usize) -> Self {
        let inner = self.inner();
        let mut pages: Vec<Body> = Vec::new();
        for (block, body) in inner.log[..changes].iter().flatten() {
            let block = *block as usize;
            while pages.len() <= block {
                pages.push(vec![0; BODY].into());
            }
            pages[block] = body.clone();
        }
        pages.push(vec![0; BODY].into());
        Self {
            inner: Mutex::new(Inner {
                pages,
                free: Vec::new(),
                log: Vec::new(),
            }),
        }
    }

    /// Changes bytes behind everybody's back, as broken hardware would.
    pub fn damage(&self, block: u32, change: impl FnOnce(&mut [u8])) {
        change(&mut self.inner().pages[block as usize]);
    }
}

impl PageStore for MemoryStore {
    type Set<'a> = MemorySet<'a>;

    fn blocks(&self) -> u32 {
        self.inner().pages.len() as u32
    }

    fn read<R>(&self, block: u32, look: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
        let inner = self.inner();
        match inner.pages.get(block as usize) {
            Some(body) => look(body),
            None => Err(IndexError::corrupt(block, "does not exist")),
        }
    }

    fn begin(&self) -> MemorySet<'_> {
        MemorySet {
            inner: self.inner(),
            pages: Vec::new(),
        }
    }

    fn release(&self, block: u32) {
        self.inner().free.push(block);
    }

    fn publish_released(&self) {}

    fn folder(&self) -> Option<PathBuf> {
        None
    }

    fn released(&self) -> u32 {
        self.inner().free.len() as u32
    }

    fn pause(&self) {}
}

/// A change of pages in memory.
#[derive(Debug)]
pub struct MemorySet<'a> {
    inner: MutexGuard<'a, Inner>,
    pages: Vec<(u32, Body)>,
}

impl WriteSet for MemorySet<'_> {
    fn lock(&mut self, block: u32) -> Result<()> {
        assert!(
            self.pages.len() < SET_PAGES,
            "more than {SET_PAGES} pages in a set"
        );
        if self.pages.iter().any(|p| p.0 == block) {
            return Err(IndexError::named_twice(block));
        }
        match self.inner.pages.get(block as usize) {
            Some(body) => self.pages.push((block, body.clone())),
            None => return Err(IndexError::corrupt(block, "does not exist")),
        }
        Ok(())
    }

    fn page(&mut self, block: u32) -> &mut [u8] {
        let page = self
            .pages
            .iter_mut()
            .find(|p| p.0 == block)
            .expect("page is in the set");
        &mut page.1
    }

    fn allocate(&mut self) -> Result<u32> {
        assert!(
            self.pages.len() < SET_PAGES,
            "more than {SET_PAGES} pages in a set"
        );
        while let Some(block) = self.inner.free.pop() {
            let taken = self.pages.iter().any(|p| p.0 == block);
            if !taken && page::is_free(&self.inner.pages[block as usize]) {
                self.pages.push((block, vec![0; BODY].into()));
                return Ok(block);
            }
        }
        let block = self.inner.pages.len() as u32;
        self.inner.pages.push(vec![0; BODY].into());
        self.pages.push((block, vec![0; BODY].into()));
        Ok(block)
    }

    fn commit(mut self) {
        let mut pages = std::mem::take(&mut self.pages);
        for (block, body) in &mut pages {
            // What lies behind the payload is not kept, as in PostgreSQL's full-page images.
            let end = page::HEADER + page::header(body).len as usize;
            body[end..].fill(0);
            self.inner.pages[*block as usize] = body.clone();
        }
        self.inner.log.push(pages);
    }
}
