//! What a server's log must not say.

/// Parts of lines that tell of a fault in the server.
const FAULTS: [&str; 10] = [
    // Buffers, catalogue entries, snapshots, descriptors, files, segments of shared memory: releasing
    // resource owners names what a transaction has left, in "… leak: …" until PostgreSQL 16.
    " leak: ",
    "resource was not closed: ",
    // Assertions, in builds that have them; these lines have no prefix.
    "TRAP: ",
    "PANIC:  ",
    // A process of the server ended by SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV.
    ") was terminated by signal 4: ",
    ") was terminated by signal 6: ",
    ") was terminated by signal 7: ",
    ") was terminated by signal 8: ",
    ") was terminated by signal 11: ",
    "you don't own a lock of type",
];

/// Lines of a log that tell of a fault, but for those that contain one of the `expected` texts. What a
/// statement says about itself (`STATEMENT`, `CONTEXT`, …) is no fault.
pub(crate) fn faults<'a>(log: &'a str, expected: &[String]) -> Vec<&'a str> {
    let quoted = ["STATEMENT:  ", "QUERY:  ", "CONTEXT:  ", "ERROR:  "];
    log.lines()
        .filter(|line| FAULTS.iter().any(|fault| line.contains(fault)))
        .filter(|line| !line.starts_with('\t'))
        .filter(|line| !quoted.iter().any(|level| line.contains(level)))
        .filter(|line| !expected.iter().any(|text| line.contains(text)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_found() {
        let bad = [
            "2026-01-01 UTC [7] client backend WARNING:  buffer refcount leak: [042] (rel=base/5/1, blockNum=0)",
            "2026-01-01 UTC [7] client backend WARNING:  relcache reference leak: relation \"t\" not closed",
            "2026-01-01 UTC [7] client backend WARNING:  snapshot reference leak: Snapshot 0x1 still referenced",
            "2026-01-01 UTC [7] client backend WARNING:  resource was not closed: buffer pin 12",
            "TRAP: FailedAssertion(\"x\", File: \"y.c\", Line: 1, PID: 7)",
            "2026-01-01 UTC [7] client backend PANIC:  stuck spinlock detected",
            "2026-01-01 UTC [1] postmaster LOG:  server process (PID 7) was terminated by signal 11: Segmentation fault",
        ];
        let good = [
            "2026-01-01 UTC [7] client backend WARNING:  terminating connection because of crash of another server process",
            "2026-01-01 UTC [1] postmaster LOG:  server process (PID 7) was terminated by signal 9: Killed",
            "2026-01-01 UTC [7] client backend ERROR:  invalid input \"PANIC:  \"",
            "2026-01-01 UTC [7] client backend STATEMENT:  SELECT 'TRAP: '",
            "\tSELECT 'buffer refcount leak: '",
        ];
        let log = [&bad[..], &good].concat().join("\n");
        assert_eq!(faults(&log, &[]), bad);
        let expected = ["refcount leak".to_owned(), "TRAP".to_owned()];
        assert_eq!(faults(&log, &expected).len(), bad.len() - 2);
    }
}
