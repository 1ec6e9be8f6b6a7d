//! Who may look into an index and work on it, under which locks.

use anyhow::{Context, Result, ensure};
use laser_tests::{Cluster, failure};
use postgres::error::SqlState;

use super::planted::{MALLORY, OWNER, connect, database, untouched};

const LOOKS: &str = "SELECT * FROM public.laser_index_info('owner.vectors_vec')";
const WORKS: [&str; 5] = [
    "SELECT public.laser_merge('owner.vectors_vec')",
    "SELECT public.laser_prewarm('owner.vectors_vec')",
    "SELECT public.laser_index_check('owner.vectors_vec')",
    "SELECT public.laser_index_recall('owner.vectors_vec', 5, 3)",
    "SELECT public.laser_index_tune('owner.vectors_vec', 0.9, 5, 3)",
];

#[test]
fn an_index_is_its_owners() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut root = database(&cluster, "d")?;
    root.batch_execute(
        "CREATE ROLE reader LOGIN; GRANT SELECT ON owner.vectors TO reader;
         CREATE ROLE watcher LOGIN; GRANT pg_stat_scan_tables TO watcher;
         CREATE ROLE member LOGIN; GRANT owner TO member;
         GRANT USAGE ON SCHEMA owner TO mallory, reader, watcher, member",
    )?;

    // What runs code of the owner is for those alone that it was granted to.
    let mut owner = connect(&cluster, "d", OWNER)?;
    for sql in &WORKS[2..] {
        let (code, message, _) = failure(&mut owner, sql)?;
        ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{message}");
        ensure!(
            message.contains("permission denied for function"),
            "{message}"
        );
    }
    // From here on the functions' own checks are all there is.
    root.batch_execute(
        "GRANT EXECUTE ON FUNCTION public.laser_index_check, public.laser_index_recall,
             public.laser_index_tune TO PUBLIC",
    )?;
    // An expression that needs a search path of its own declares it.
    root.batch_execute("ALTER FUNCTION owner.vec(integer) SET search_path = owner, public")?;

    for (role, looks, works) in [
        (OWNER, true, true),
        ("member", true, true),
        ("postgres", true, true),
        ("reader", true, false),
        ("watcher", true, false),
        (MALLORY, false, false),
    ] {
        let mut client = connect(&cluster, "d", role)?;
        client.batch_execute("SET search_path = mallory, public, pg_catalog")?;
        let all = std::iter::once((LOOKS, looks)).chain(WORKS.map(|sql| (sql, works)));
        for (sql, may) in all {
            client.batch_execute("BEGIN")?;
            if may {
                client
                    .batch_execute(sql)
                    .with_context(|| format!("{role}: {sql}"))?;
            } else {
                let (code, message, _) = failure(&mut client, sql)?;
                ensure!(
                    code == SqlState::INSUFFICIENT_PRIVILEGE,
                    "{role}: {message}"
                );
            }
            let locks: i64 = root
                .query_one(
                    "SELECT count(*) FROM pg_locks JOIN pg_class c ON c.oid = relation
                     JOIN pg_stat_activity a USING (pid)
                     WHERE relnamespace = 'owner'::regnamespace AND usename = $1",
                    &[&role],
                )?
                .get(0);
            ensure!(locks == 0, "{role} keeps {locks} locks after {sql}");
            client.batch_execute("ROLLBACK")?;
            let now: String = client.query_one("SELECT current_user::text", &[])?.get(0);
            ensure!(now == role, "{now} after {sql}");
        }
    }
    untouched(&mut root, "all roles")?;

    // Nor does somebody without rights wait for the owner, and others for him.
    owner
        .batch_execute("BEGIN; LOCK TABLE vectors IN ACCESS EXCLUSIVE MODE")
        .ok();
    owner.batch_execute("ROLLBACK; BEGIN; LOCK TABLE owner.vectors IN ACCESS EXCLUSIVE MODE")?;
    let mut mallory = connect(&cluster, "d", MALLORY)?;
    mallory.batch_execute("SET lock_timeout = '2s'")?;
    for sql in [LOOKS].into_iter().chain(WORKS) {
        let (code, message, _) = failure(&mut mallory, sql)?;
        ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{sql}: {message}");
    }
    // Another's rights are checked again once the lock is held.
    let mut member = connect(&cluster, "d", "member")?;
    let waiting = std::thread::spawn(move || failure(&mut member, WORKS[0]));
    laser_tests::wait_until("the member waits for the lock", || {
        let waits: i64 = root
            .query_one(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE usename = 'member' AND wait_event_type = 'Lock'",
                &[],
            )?
            .get(0);
        Ok(waits == 1)
    })?;
    root.batch_execute("REVOKE owner FROM member")?;
    owner.batch_execute("COMMIT")?;
    let (code, message, _) = waiting.join().expect("no panic")?;
    ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{message}");
    Ok(())
}

/// Expressions run under a path on which nobody has put anything, whoever asks: the owner's own
/// careless function fails rather than that it takes another's.
#[test]
fn expressions_run_under_a_safe_path() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut root = database(&cluster, "d")?;
    for path in [
        "mallory, public",
        "pg_temp, mallory, public",
        "public, pg_catalog",
    ] {
        root.batch_execute(&format!("SET search_path = {path}, owner"))?;
        for sql in &WORKS[2..] {
            let (code, message, _) = failure(&mut root, sql)?;
            ensure!(code == SqlState::UNDEFINED_FUNCTION, "{sql}: {message}");
            ensure!(
                message.contains("helper(integer) does not exist"),
                "{message}"
            );
        }
    }
    // The path is the session's own again, after errors and after successes.
    root.batch_execute(
        "ALTER FUNCTION owner.vec(integer) SET search_path = owner, public;
         SELECT public.laser_index_check('owner.vectors_vec')",
    )?;
    let path: String = root.query_one("SHOW search_path", &[])?.get(0);
    ensure!(path == "public, pg_catalog, owner", "{path}");
    // Code of the owner neither changes roles nor leaves anything behind.
    root.batch_execute(
        "CREATE OR REPLACE FUNCTION owner.vec(i integer) RETURNS public.embedding
         LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
             PERFORM pg_catalog.set_config('role', 'postgres', false);
             RETURN NULL; END $$",
    )?;
    let (code, message, _) = failure(
        &mut root,
        "SELECT public.laser_index_check('owner.vectors_vec')",
    )?;
    ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{message}");
    ensure!(message.contains("security-restricted"), "{message}");
    untouched(&mut root, "the superuser's calls")
}
