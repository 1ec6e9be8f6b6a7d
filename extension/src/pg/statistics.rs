//! What the server counts of a relation.
#![allow(unsafe_code)]

use pgrx::pg_sys;

/// Where this transaction counts the scans of a relation that is open, sequential ones of a table; `None` where it counts none.
///
/// # Safety
/// The relation is open, and stays it as long as the reference is used.
pub unsafe fn scans<'a>(relation: pg_sys::Relation) -> Option<&'a mut i64> {
    // SAFETY: by contract. What the pointer leads to lives until the end of the transaction.
    unsafe {
        let status = (*relation).pgstat_info.as_mut()?;
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let counted = &mut status.t_counts.t_numscans;
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let counted = &mut status.counts.numscans;
        Some(counted)
    }
}

/// Many scans of a few blocks each that count as one.
pub struct OneScan {
    table: pg_sys::Relation,
    counted: Option<i64>,
}

impl OneScan {
    /// Those of a table.
    pub fn of(table: pg_sys::Relation) -> Self {
        Self {
            table,
            counted: None,
        }
    }

    /// To be called after each of them.
    ///
    /// # Safety
    /// The relation is open.
    pub unsafe fn scanned(&mut self) {
        // SAFETY: by contract. The count begins to be there with the first of them.
        if let Some(count) = unsafe { scans(self.table) } {
            *count = *self.counted.get_or_insert(*count);
        }
    }
}
