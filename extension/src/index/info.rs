//! Functions that look into an index.
