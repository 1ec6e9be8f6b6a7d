//! Memory that is not there: a statement fails, a session may end, the server goes on.
#![allow(unsafe_code)] // the size of a page

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use laser_tests::bench::cost;
use laser_tests::{Cluster, failure, segment_files};
use postgres::error::SqlState;
use postgres::{Client, SimpleQueryMessage};

const MIB: u64 = 1 << 20;

/// Process id of a session.
fn backend(client: &mut Client) -> Result<i32> {
    Ok(client.query_one("SELECT pg_backend_pid()", &[])?.get(0))
}

/// Sets a limit of a session, as the server's account.
fn limit(cluster: &Cluster, client: &mut Client, limit: &str) -> Result<()> {
    let pid = backend(client)?;
    cluster.connect("postgres")?.batch_execute(&format!(
        "COPY (SELECT WHERE false) TO PROGRAM 'prlimit --pid {pid} --{limit}:'"
    ))?;
    Ok(())
}

/// Limits a session to `bytes` bytes of addresses beyond those that it has.
fn leave(cluster: &Cluster, client: &mut Client, bytes: u64) -> Result<()> {
    let pid = backend(client)?;
    let pages: u64 = fs::read_to_string(format!("/proc/{pid}/statm"))?
        .split(' ')
        .next()
        .context("statm")?
        .parse()?;
    // SAFETY: a plain question.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    limit(cluster, client, &format!("as={}", pages * page + bytes))
}

/// That no process of the server has crashed so far, for which all sessions are ended.
fn unharmed(cluster: &Cluster, witness: &mut Client, after: &str) -> Result<()> {
    let log = cluster.log();
    let crash = log.lines().find(|line| {
        line.contains("terminated by signal") || line.contains("exited with exit code")
    });
    ensure!(crash.is_none(), "{after}: {}", crash.unwrap_or_default());
    witness
        .batch_execute("SELECT 1")
        .with_context(|| format!("{after}: the server has ended its sessions"))
}

/// A session that has no room to map the file of a segment neither removes it nor makes it again.
#[test]
fn who_cannot_look_at_a_file_leaves_it_to_the_others() -> Result<()> {
    use std::os::unix::fs::MetadataExt;

    let cluster = Cluster::new()?;
    let mut client = cluster.database("files")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT g AS id, v.v::embedding(64) AS v FROM generate_series(1, 30000) g,
           LATERAL (SELECT array_agg(random()::real) AS v FROM generate_series(1, 64) i WHERE g > 0) v;
         CREATE INDEX ON t USING laser (v embedding_l2_ops)",
    )?;
    let search = "SET enable_seqscan = off;
        SELECT id FROM t ORDER BY v <-> array_fill(0.5::real, '{64}')::embedding LIMIT 1";
    client.batch_execute(search)?;
    let files = || -> Result<Vec<u64>> {
        let inode = |file: &(PathBuf, u64)| Ok(fs::metadata(&file.0)?.ino());
        segment_files(&cluster)?.iter().map(inode).collect()
    };
    let before = files()?;
    ensure!(before.len() == 1, "{before:?}");
    let mut poor = cluster.connect("files")?;
    poor.batch_execute("SELECT '[1]'::embedding")?;
    leave(&cluster, &mut poor, 1 << 20)?;
    let (code, message, _) = failure(&mut poor, search)?;
    ensure!(code == SqlState::OUT_OF_MEMORY, "{code:?}: {message}");
    ensure!(files()? == before);
    Ok(())
}

#[test]
fn an_array_of_too_many_texts_is_refused() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("arrays")?;
    let (code, message, hint) = failure(
        &mut client,
        "SELECT laser_embed(array_fill('a'::text, ARRAY[20000000]))",
    )?;
    assert_eq!(code, SqlState::PROGRAM_LIMIT_EXCEEDED, "{message}");
    assert!(
        message.starts_with("array of 20000000 texts is too long"),
        "{message}"
    );
    assert!(hint.contains("unnest"), "{hint}");
    // The server does not hear of a cancel while it takes an array apart.
    for call in [
        "laser_embed(array_fill(NULL::text, ARRAY[5000, 1000]))",
        "laser_rerank('a', array_fill(NULL::text, ARRAY[5000, 1000]), 'none')",
    ] {
        let (code, message, hint) = failure(&mut client, &format!("SELECT {call}"))?;
        assert_eq!(code, SqlState::PROGRAM_LIMIT_EXCEEDED, "{message}");
        assert!(message.contains("5000000 texts is too long"), "{message}");
        assert!(hint.contains("unnest"), "{hint}");
    }
    // Several batches; where there is no text there is no embedding.
    let row = client.query_one(
        "WITH e AS (SELECT laser_embed(array_agg(CASE WHEN g % 7 <> 0 THEN 'text ' || g % 100 END
                                                ORDER BY g)) AS e
                    FROM generate_series(1, 9000) g)
         SELECT cardinality(e), (SELECT count(*) FROM unnest(e) x WHERE x IS NULL),
                (SELECT bool_and(e[g] = laser_embed('text ' || g % 100))
                 FROM generate_series(1, 9000, 61) g WHERE g % 7 <> 0)
         FROM e",
        &[],
    )?;
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i64>(1)), (9000, 1285));
    assert!(row.get::<_, bool>(2));
    Ok(())
}

/// One row has all others as neighbours, and each of them has that one: lists of the same room for
/// all would take hundreds of gigabytes.
#[test]
fn lists_take_what_they_hold() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("hub")?;
    let lists = "$$SELECT 0, g, g / 1e6::float8 FROM generate_series(0, 199999) g
                   UNION ALL SELECT g, 0, g / 1e6::float8 FROM generate_series(1, 199999) g$$";
    let sql = format!("SELECT count(*) FROM laser_mine_neighbours({lists}, {lists})");
    assert!(client.query_one(&sql, &[])?.get::<_, i64>(0) > 0);

    client.batch_execute(
        "CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL);
         INSERT INTO state (side, id, content, embedding, neighbours, cosines)
         SELECT side, g, decode(md5(g::text), 'hex'), '[1,2]',
                CASE WHEN g = 0 THEN (SELECT array_agg(n) FROM generate_series(0, 99999) n)
                     ELSE ARRAY[0] END,
                CASE WHEN g = 0 THEN (SELECT array_agg(n / 1e6::float8) FROM generate_series(0, 99999) n)
                     ELSE ARRAY[g / 1e6::float8] END
         FROM generate_series(0, 99999) g, unnest(ARRAY['s', 't']) side",
    )?;
    let sql = "SELECT count(*) FROM laser_mine_stored('state')";
    assert!(client.query_one(sql, &[])?.get::<_, i64>(0) > 0);

    client.batch_execute("SET laser.mining_memory = '1MB'")?;
    for sql in [
        format!("SELECT * FROM laser_mine_neighbours({lists}, {lists})"),
        format!("SELECT * FROM laser_knn_merge({lists}, 3)"),
        "SELECT * FROM laser_mine_stored('state')".into(),
    ] {
        let (code, message, hint) = failure(&mut client, &sql)?;
        assert_eq!(code, SqlState::CONFIGURATION_LIMIT_EXCEEDED, "{message}");
        assert!(hint.contains("laser.mining_memory"), "{hint}");
    }
    Ok(())
}

/// Ids, hashes of texts, pairs and results count, in every function.
#[test]
fn what_mining_keeps_is_limited() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("kept")?;
    client.batch_execute(
        "CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL);
         CREATE TABLE v AS SELECT g AS id, '[1]'::embedding AS v FROM generate_series(1, 300000) g;
         CREATE TABLE a AS SELECT g AS id, 'a' AS body FROM generate_series(1, 40000) g;
         CREATE TABLE b AS SELECT g AS id, 'b' || g AS body FROM generate_series(1, 2000) g;
         CREATE INDEX ON a USING laser (body); CREATE INDEX ON b USING laser (body); ANALYZE a, b;
         CREATE ROLE somebody; GRANT ALL ON state, v, a, b TO somebody;
         SET laser.mining_memory_limit = '2MB'; SET ROLE somebody",
    )?;
    let ids = "SELECT i, i FROM generate_series(1, 300000) i";
    let scored = "SELECT i, i, 0.5::float8 FROM generate_series(1, 300000) i";
    let texts = "SELECT i, ''t'' || i FROM generate_series(1, 300000) i";
    let none = "SELECT 1, ''t'' WHERE false";
    for sql in [
        format!("SELECT * FROM laser_bucc_score('{scored}', 'SELECT 1, 1')"),
        format!("SELECT * FROM laser_bucc_score('SELECT 1, 1, 0.5::float8', '{ids}')"),
        format!(
            "SELECT * FROM laser_margin_scores('{ids}', 'VALUES (1, ''a'')', 'VALUES (1, ''a'')')"
        ),
        format!("SELECT * FROM laser_knn_merge('{scored}', 1)"),
        format!("SELECT * FROM laser_knn_join('{texts}', '{none}', 1)"),
        "SELECT * FROM laser_knn_join('SELECT id, v FROM v', 'SELECT id, v FROM v WHERE false', 1)"
            .into(),
        format!("SELECT * FROM laser_mine('{texts}', '{none}')"),
        format!("SELECT * FROM laser_mine_update('state', '{texts}', '{none}')"),
        format!("SELECT * FROM laser_similarity_error('{texts}', '{none}')"),
        "SELECT * FROM laser_mine('SELECT id * 50 + g, body FROM a, generate_series(1, 20) g WHERE id < 10000',
                                  'SELECT id, body FROM b', method => 'index')"
            .into(),
        "SELECT * FROM laser_mine('SELECT id, body FROM a', 'SELECT id, body FROM b WHERE id < 20',
                                  k => 9500, method => 'index')"
            .into(),
        // Copies of a text, of which more and more are asked for.
        "SELECT * FROM laser_mine('SELECT id, body FROM a', 'SELECT id, body FROM b WHERE id < 20',
                                  method => 'index')"
            .into(),
    ] {
        let (code, message, hint) = failure(&mut client, &sql)?;
        assert_eq!(
            code,
            SqlState::CONFIGURATION_LIMIT_EXCEEDED,
            "{sql}: {message}"
        );
        assert!(hint.contains("laser.mining_memory"), "{sql}: {hint}");
    }
    Ok(())
}

#[test]
fn nobody_may_ask_for_more_than_the_machine_has() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("limits")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT g AS id, format('[%s,1]', g)::embedding AS v
                           FROM generate_series(1, 60000) g;
         CREATE ROLE somebody; GRANT SELECT ON t TO somebody",
    )?;
    let mine = "SELECT * FROM laser_mine('SELECT id, v FROM t', 'SELECT id, v FROM t', k => 60000)";
    client.batch_execute("SET ROLE somebody; SET laser.mining_memory = '2147483647kB'")?;
    let (code, message, _) = failure(&mut client, mine)?;
    assert_eq!(code, SqlState::CONFIGURATION_LIMIT_EXCEEDED, "{message}");
    let (code, ..) = failure(
        &mut client,
        "SET laser.mining_memory_limit = '2147483647kB'",
    )?;
    assert_eq!(code, SqlState::INSUFFICIENT_PRIVILEGE);

    // A superuser may; and then it is not there.
    client.batch_execute("RESET ROLE; SET laser.mining_memory_limit = '2147483647kB'")?;
    leave(&cluster, &mut client, 200 * MIB)?;
    let (code, message, _) = failure(&mut client, mine)?;
    assert_eq!(code, SqlState::OUT_OF_MEMORY, "{message}");
    client.batch_execute("SELECT 1")?;
    Ok(())
}

/// Calls of functions whose arguments mean something; the table has 4,000 rows.
const CALLS: [(&str, &str); 28] = [
    (
        "laser_keep_embedded",
        "laser_keep_embedded('t', 'body', 'v')",
    ),
    (
        "laser_embed",
        "laser_embed((SELECT array_agg(body) FROM t))",
    ),
    ("laser_embed", "laser_embed(repeat('a b ', 250000))"),
    ("laser_embed", "laser_embed(repeat(U&'\\FDFA', 340000))"),
    (
        "laser_mine",
        "laser_mine('SELECT id, v FROM t', 'SELECT id, v FROM t')",
    ),
    (
        "laser_mine",
        "laser_mine('SELECT id, body FROM t', 'SELECT id, body FROM t')",
    ),
    (
        "laser_mine",
        "laser_mine('SELECT id, v FROM t', 'SELECT id, v FROM t', k => 2000)",
    ),
    (
        "laser_mine",
        "laser_mine('SELECT id, v FROM t LIMIT 300', 'SELECT id, v FROM t', method => 'index')",
    ),
    (
        "laser_knn_join",
        "laser_knn_join('SELECT id, v FROM t', 'SELECT id, v FROM t', 100)",
    ),
    (
        "laser_knn_merge",
        "laser_knn_merge('SELECT g % 100, g, g / 1e9::float8 FROM generate_series(1, 500000) g', 4)",
    ),
    (
        "laser_mine_neighbours",
        "laser_mine_neighbours('SELECT g, g, 0.5::float8 FROM generate_series(1, 300000) g',
                               'SELECT g, g, 0.5::float8 FROM generate_series(1, 300000) g')",
    ),
    (
        "laser_margin_scores",
        "laser_margin_scores('SELECT a.id, b.id FROM t a, t b WHERE b.id < 100',
                             'SELECT id, v FROM t', 'SELECT id, v FROM t')",
    ),
    (
        "laser_similarity_error",
        "laser_similarity_error('SELECT id, v FROM t', 'SELECT id, v FROM t')",
    ),
    (
        "laser_bucc_score",
        "laser_bucc_score('SELECT g, g, g / 1e9::float8 FROM generate_series(1, 1000000) g',
                          'SELECT g, g FROM generate_series(1, 1000000, 2) g')",
    ),
    (
        "laser_mine_update",
        "laser_mine_update('state', 'SELECT id, v FROM t', 'SELECT id, v FROM t WHERE id > 5')",
    ),
    ("laser_mine_stored", "laser_mine_stored('state')"),
    ("laser_index_info", "laser_index_info('t_v_idx')"),
    ("laser_index_check", "laser_index_check('t_v_idx')"),
    ("laser_index_recall", "laser_index_recall('t_v_idx', 1000)"),
    ("laser_index_tune", "laser_index_tune('t_v_idx', 0.99, 300)"),
    ("laser_index_estimate", "laser_index_estimate(1000000, 384)"),
    (
        "laser_hybrid",
        "laser_hybrid(NULL::t, 'body', 'text 17 and others', 1000)",
    ),
    (
        "laser_hybrid_query",
        "laser_hybrid_query(NULL::t, 'body', repeat('many words ', 50000))",
    ),
    (
        "laser_hybrid_statement",
        "laser_hybrid_statement('t', 'body', repeat('many words ', 50000), 9, NULL, NULL, NULL, NULL, 9, NULL, 1, 1, 60, NULL)",
    ),
    ("laser_merge", "laser_merge('t_v_idx')"),
    ("laser_prewarm", "laser_prewarm('t_v_idx')"),
    (
        "laser_embed_table",
        "laser_embed_table('t', 'body', 'e', 1000)",
    ),
    (
        "cosine_distance",
        "cosine_distance(repeat('a', 1000000), repeat('b c', 300000))",
    ),
];

/// Statements that no function stands for.
const STATEMENTS: [&str; 6] = [
    "CREATE INDEX CONCURRENTLY ON t USING laser (v)",
    "CREATE INDEX ON t USING laser (body)",
    "INSERT INTO t (id, body, v) SELECT -id, body, v FROM t WHERE id < 500",
    "DELETE FROM t WHERE id < 0",
    "VACUUM t",
    "SET enable_seqscan = off; SELECT id FROM t ORDER BY v <=> (SELECT v FROM t LIMIT 1) LIMIT 100",
];

/// A large argument of a type.
fn argument(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "integer" => "1000",
        "bigint" => "1",
        "smallint" => "1::smallint",
        "double precision" => "0.5",
        "boolean" => "true",
        "text" => "repeat('a ', 500000)",
        "text[]" => "array_fill(repeat('a', 1000), ARRAY[20000])",
        "regclass" => "'t_v_idx'::regclass",
        "oid" => "'t'::regclass::oid",
        "bytea" => "decode(repeat('00', 10000000), 'hex')",
        "cstring" => "(('[1' || repeat(',1', 15999) || ']')::cstring)",
        "embedding" => "array_fill(1, ARRAY[16000])::embedding",
        "halfembedding" => "array_fill(1, ARRAY[16000])::halfembedding",
        "embedding[]" => "array_fill(array_fill(1, ARRAY[16000])::embedding, ARRAY[200])",
        "real[]" => "array_fill(1::real, ARRAY[16000])",
        "double precision[]" => "array_fill(1::double precision, ARRAY[16000])",
        "integer[]" => "array_fill(1, ARRAY[16000])",
        "numeric[]" => "array_fill(1::numeric, ARRAY[16000])",
        "cstring[]" => "ARRAY['3'::cstring]",
        _ => return None,
    })
}

/// A call of every function of the extension that SQL can call.
fn statements(client: &mut Client) -> Result<Vec<String>> {
    let functions = client.query(
        "SELECT p.proname::text, p.prokind::text,
                ARRAY(SELECT format_type(a, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY u(a, n)
                      ORDER BY n)
         FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
         JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
         WHERE e.extname = 'laser' AND d.deptype = 'e' ORDER BY p.oid",
        &[],
    )?;
    ensure!(functions.len() > 50, "{} functions", functions.len());
    let mut statements: Vec<String> = STATEMENTS.map(String::from).into();
    for row in functions {
        let (name, kind): (String, String) = (row.get(0), row.get(1));
        let mut known = CALLS.iter().filter(|call| call.0 == name).peekable();
        if known.peek().is_some() {
            let verb = if kind == "p" { "CALL" } else { "SELECT" };
            statements.extend(known.map(|call| format!("{verb} {}", call.1)));
            continue;
        }
        let types: Vec<String> = row.get(2);
        let arguments: Option<Vec<&str>> = types.iter().map(|t| argument(t)).collect();
        match arguments {
            Some(arguments) => statements.push(match kind.as_str() {
                "a" => format!(
                    "SELECT {name}({}) FROM generate_series(1, 50)",
                    arguments.join(", ")
                ),
                _ => format!("SELECT {name}({})", arguments.join(", ")),
            }),
            None => ensure!(
                types.iter().any(|t| t == "internal"),
                "the test has no argument for {name}({})",
                types.join(", ")
            ),
        }
    }
    statements.sort();
    statements.dedup();
    Ok(statements)
}

#[test]
fn every_function_survives_without_memory() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("max_parallel_maintenance_workers", "2")
        .start()?;
    let mut witness = cluster.database("memory")?;
    witness.batch_execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, body text, v embedding(128), e embedding(384));
         INSERT INTO t SELECT g, 'text ' || g,
                              (SELECT array_agg(sin(g * (n + 1.7))) FROM generate_series(1, 128) n)
         FROM generate_series(1, 4000) g;
         CREATE INDEX ON t USING laser (v);
         CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL);
         SELECT laser_mine_update('state', 'SELECT id, v FROM t', 'SELECT id, v FROM t WHERE id > 9')",
    )?;
    let (mut done, mut failed, mut ended) = (0, 0, 0);
    for statement in statements(&mut witness)? {
        for room in [1, 6, 24] {
            let mut client = cluster.connect("memory")?;
            // What the session needs in any case: the library, its model, the catalogue.
            client.batch_execute("SELECT laser_embed('warm'), '[1,2]'::embedding")?;
            leave(&cluster, &mut client, room * MIB)?;
            let name = format!("{statement}, with {room} MiB");
            match client.batch_execute(&statement) {
                Ok(()) => done += 1,
                Err(error) => {
                    let severity = error.as_db_error().map_or("", |e| e.severity());
                    match (severity, error.code()) {
                        ("ERROR", _) => failed += 1,
                        ("FATAL", Some(&SqlState::OUT_OF_MEMORY)) => {
                            eprintln!("ended: {name}");
                            ended += 1;
                        }
                        _ => {
                            // The server sees an end that was none of its own a little later.
                            thread::sleep(Duration::from_millis(200));
                            unharmed(&cluster, &mut witness, &name)?;
                            // No memory for the message.
                            eprintln!("ended without a message: {name}: {error}");
                            ended += 1;
                        }
                    }
                }
            }
            unharmed(&cluster, &mut witness, &name)?;
        }
    }
    eprintln!("{done} done, {failed} failed, {ended} sessions ended");
    assert!(done > 50 && failed > 50 && ended * 20 < done + failed);
    Ok(())
}

/// A function may raise the error of a session without memory in somebody else's session.
#[test]
fn raising_a_lack_of_memory_ends_nothing() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("raised")?;
    client.batch_execute("SELECT '[1]'::embedding")?;
    for level in ["LOG", "NOTICE", "WARNING"] {
        client.batch_execute(&format!(
            "DO $$ BEGIN FOR i IN 1..20 LOOP RAISE {level} USING ERRCODE = '53200'; END LOOP; END $$"
        ))?;
    }
    client.batch_execute(
        "DO $$ BEGIN
           FOR i IN 1..20 LOOP
             BEGIN RAISE EXCEPTION USING ERRCODE = '53200'; EXCEPTION WHEN out_of_memory THEN END;
           END LOOP;
         END $$",
    )?;
    Ok(())
}

/// Whatever is left when a thread is about to start: it starts, or there is an error.
#[test]
fn threads_start_within_what_there_is() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("max_parallel_maintenance_workers", "2")
        .start()?;
    let mut witness = cluster.database("threads")?;
    witness.batch_execute(
        "CREATE TABLE t AS SELECT g AS id,
           (SELECT array_agg(sin(g * (n + 1.7))) FROM generate_series(1, 128) n)::embedding(128) AS v
         FROM generate_series(1, 3000) g;
         CREATE INDEX ON t USING laser (v)",
    )?;
    let (mut done, mut failed) = (0, 0);
    for step in 1..=150 {
        witness.batch_execute(
            "INSERT INTO t SELECT -id, v FROM t WHERE id BETWEEN 1 AND 300; DELETE FROM t WHERE id < 0",
        )?;
        let mut client = cluster.connect("threads")?;
        client.batch_execute("SELECT '[1]'::embedding")?;
        // Steps that are no multiple of a page, around the sizes of stacks, heaps and the graph.
        let room = 6 * MIB + step * 190_000;
        leave(&cluster, &mut client, room)?;
        let name = format!("with {room} bytes");
        match client.batch_execute("SELECT laser_merge('t_v_idx')") {
            Ok(()) => done += 1,
            Err(error) => {
                failed += 1;
                eprintln!(
                    "{name}: {}",
                    error.as_db_error().map_or("closed", |e| e.message())
                );
                if error.code().is_none() {
                    thread::sleep(Duration::from_millis(200));
                }
            }
        }
        unharmed(&cluster, &mut witness, &name)?;
    }
    assert!(done > 10 && failed > 20, "{done} done, {failed} failed");
    Ok(())
}

#[test]
fn without_threads_there_is_an_error() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("laser.background_maintenance", "off")
        .setting("autovacuum", "off")
        .start()?;
    let mut witness = cluster.database("threads")?;
    witness.batch_execute(
        "CREATE TABLE t AS SELECT g AS id, format('[%s,%s]', sin(g), cos(g))::embedding(2) AS v
                           FROM generate_series(1, 3000) g",
    )?;
    for sql in [
        "SELECT * FROM laser_mine('SELECT id, v FROM t', 'SELECT id, v FROM t')",
        "CREATE INDEX ON t USING laser (v)",
    ] {
        let mut client = cluster.connect("threads")?;
        client.batch_execute("SELECT '[1]'::embedding; SET laser.mining_threads = 4")?;
        limit(&cluster, &mut client, "nproc=1")?;
        let (code, message, _) = failure(&mut client, sql)?;
        assert_eq!(code, SqlState::INSUFFICIENT_RESOURCES, "{message}");
        unharmed(&cluster, &mut witness, sql)?;
    }
    // What is inserted or vacuumed is in the index already; merging can wait until there are some.
    witness.batch_execute(
        "CREATE INDEX ON t USING laser (v) WITH (pending_list_limit = 64); DELETE FROM t WHERE id % 3 = 0",
    )?;
    let mut client = cluster.connect("threads")?;
    client.batch_execute("SELECT '[1]'::embedding")?;
    limit(&cluster, &mut client, "nproc=1")?;
    client.batch_execute("INSERT INTO t SELECT -id, v FROM t")?;
    client.batch_execute("VACUUM t")?;
    let rows = "SET enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM t ORDER BY v <=> '[1,2]' LIMIT 9999) s";
    let found = client.simple_query(rows)?;
    let count = found.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    assert_eq!(count, Some("4000"));
    Ok(())
}

/// The limit falls below what a session has, while it works: nothing new can be mapped, whatever is
/// given up, and reporting that takes memory too.
#[test]
fn a_limit_below_what_there_is_ends_a_session_at_most() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut witness = cluster.database("lowered")?;
    let statements = [
        "SELECT cardinality(laser_embed(array_fill('a b c'::text, ARRAY[200000])))",
        "SELECT cardinality(array_agg(laser_embed(g::text))) FROM generate_series(1, 200000) g",
        "SELECT length(array_agg(('[' || repeat('1,', 999) || g || ']')::embedding)::text)
         FROM generate_series(1, 20000) g",
    ];
    let (mut failed, mut ended) = (0, 0);
    for (statement, grown) in statements.iter().flat_map(|s| [(s, 10), (s, 40), (s, 90)]) {
        let mut client = cluster.connect("lowered")?;
        client.batch_execute("SELECT laser_embed('warm'), '[1,2]'::embedding")?;
        let pid = backend(&mut client)?;
        let size = || -> Result<u64> {
            let statm = fs::read_to_string(format!("/proc/{pid}/statm"))?;
            Ok(statm.split(' ').next().context("statm")?.parse::<u64>()? * 4096)
        };
        let before = size()?;
        let mut superuser = cluster.connect("postgres")?;
        let result = std::thread::scope(|scope| -> Result<_> {
            let work = scope.spawn(|| client.batch_execute(statement));
            while !work.is_finished() && size()? < before + grown * MIB {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            superuser.batch_execute(&format!(
                "COPY (SELECT WHERE false) TO PROGRAM 'prlimit --pid {pid} --as={}:'",
                100 * MIB
            ))?;
            Ok(work.join().expect("it does not panic"))
        })?;
        let name = format!("{statement}, after {grown} MiB");
        if let Err(error) = result {
            if error.as_db_error().is_some_and(|e| e.severity() == "ERROR") {
                failed += 1;
                // Errors one after the other do not pile up.
                for _ in 0..5 {
                    let again = client.batch_execute(statement).err();
                    let severity = again
                        .as_ref()
                        .and_then(|e| Some(e.as_db_error()?.severity()));
                    ensure!(severity == Some("ERROR"), "{name}: {again:?}");
                }
            } else {
                ended += 1;
            }
        }
        unharmed(&cluster, &mut witness, &name)?;
    }
    eprintln!("{failed} failed, {ended} sessions ended");
    ensure!(failed + ended > 4, "{failed} failed, {ended} ended");
    Ok(())
}

/// The limit moves while threads are made, so that what there was room for a moment ago cannot be had when a
/// thread begins.
#[test]
fn a_limit_that_moves_while_threads_start_ends_no_server() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("max_parallel_maintenance_workers", "7")
        .start()?;
    let mut witness = cluster.database("moving")?;
    witness.batch_execute(
        "CREATE TABLE t AS SELECT g AS id,
           (SELECT array_agg(sin(g * (n + 1.7))) FROM generate_series(1, 64) n)::embedding(64) AS v
         FROM generate_series(1, 600) g;
         CREATE INDEX ti ON t USING laser (v)",
    )?;
    let statements = [
        "REINDEX INDEX ti",
        "SELECT count(*) FROM laser_mine('SELECT id, v FROM t', 'SELECT id, v FROM t')",
    ];
    let (mut done, mut failed) = (0, 0);
    for round in 0..150u64 {
        let mut client = cluster.connect("moving")?;
        client.batch_execute("SELECT '[1]'::embedding; SET laser.mining_threads = 7")?;
        let pid = backend(&mut client)?;
        let statement = statements[round as usize % 2];
        if round % 3 == 0 {
            // A cancel that comes while a thread stops because it is out of memory.
            client.batch_execute(&format!("SET statement_timeout = {}", 5 + round % 40))?;
        }
        let mut mover = cluster.connect("postgres")?;
        let result = thread::scope(|scope| {
            let _ends = ends(pid);
            let moved = scope.spawn(|| mover.batch_execute(&move_limit(pid, 1 + round)));
            let result = client.batch_execute(statement);
            // What moves the limit ends with the session.
            drop(client);
            let moved = moved.join().expect("it does not panic");
            moved.map(|()| result)
        })?;
        match result {
            Ok(()) => done += 1,
            Err(error) => {
                failed += 1;
                // Nobody has ended the session but itself.
                let code = error.code();
                ensure!(
                    code != Some(&SqlState::ADMIN_SHUTDOWN),
                    "round {round}: {error:?}"
                );
            }
        }
        unharmed(
            &cluster,
            &mut witness,
            &format!("round {round}, {statement}"),
        )?;
    }
    eprintln!("{done} done, {failed} failed");
    ensure!(failed > 20, "{done} done, {failed} failed");
    Ok(())
}

/// Memory goes while a merge loads a graph to continue it, which usearch does without looking whether it gets what
/// it asks for.
#[test]
fn a_limit_that_falls_while_a_graph_is_loaded_ends_a_session_at_most() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("laser.background_maintenance", "off")
        .setting("maintenance_work_mem", "512MB")
        .start()?;
    let mut witness = cluster.database("loads")?;
    witness.batch_execute(
        "CREATE TABLE t AS SELECT g AS id,
           (SELECT array_agg(sin(g * (n + 1.7))) FROM generate_series(1, 512) n)::embedding(512) AS v
         FROM generate_series(1, 12000) g;
         CREATE INDEX ti ON t USING laser (v) WITH (quantization = f32)",
    )?;
    let (mut done, mut failed) = (0, 0);
    for round in 0..60u64 {
        witness.batch_execute("INSERT INTO t SELECT -id, v FROM t WHERE id BETWEEN 1 AND 300")?;
        let mut client = cluster.connect("loads")?;
        client.batch_execute("SELECT '[1]'::embedding")?;
        let pid = backend(&mut client)?;
        let mut mover = cluster.connect("postgres")?;
        let result = thread::scope(|scope| {
            let _ends = ends(pid);
            let work = scope.spawn(|| client.batch_execute("SELECT laser_merge('ti')"));
            thread::sleep(Duration::from_millis(20 + 5 * round));
            mover.batch_execute(&fall(pid))?;
            Ok::<_, postgres::Error>(work.join().expect("it does not panic"))
        })?;
        match result {
            Ok(()) => done += 1,
            Err(_) => failed += 1,
        }
        unharmed(&cluster, &mut witness, &format!("round {round}"))?;
    }
    eprintln!("{done} done, {failed} failed");
    ensure!(failed > 5, "{done} done, {failed} failed");
    Ok(())
}

/// Until what this returns is dropped, which is to be soon: a session that goes on for two minutes is killed, for which
/// the test fails, and what its threads were doing is printed.
fn ends(pid: i32) -> mpsc::Sender<()> {
    let (ended, end) = mpsc::channel::<()>();
    thread::spawn(move || {
        if end.recv_timeout(Duration::from_secs(120)) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        eprintln!("session {pid} hangs");
        for thread in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            for file in ["comm", "stat", "syscall", "wchan", "stack"] {
                let text = fs::read_to_string(thread.path().join(file)).unwrap_or_default();
                eprintln!(
                    "{} {file}: {}",
                    thread.file_name().display(),
                    text.trim_end()
                );
            }
        }
        laser_tests::signal(pid.cast_unsigned(), libc::SIGKILL);
    });
    ended
}

/// A statement that leaves a session no more addresses than it has.
fn fall(pid: i32) -> String {
    let script = format!(
        "read pages rest < /proc/{pid}/statm && prlimit --pid {pid} --as=$((pages * 4096)): 2> /dev/null; true"
    );
    format!("COPY (SELECT WHERE false) TO PROGRAM '{script}'")
}

/// A statement that leaves a session a little more addresses than it has, or all, in turns until the session
/// ends. Sizes and times are of a sequence without a pattern, the same in each run (Lehmer's generator).
fn move_limit(pid: i32, seed: u64) -> String {
    let script = format!(
        "r={seed}; while read pages rest < /proc/{pid}/statm && [ $pages -gt 0 ]; do
           r=$((r * 48271 % 2147483647));
           case $((r % 3)) in 0) b=0;; 1) b=$((r % 80 * 4096));; *) b=$((r % 3145728));; esac;
           prlimit --pid {pid} --as=$((pages * 4096 + b)):;
           [ $((r % 5)) -gt 1 ] || prlimit --pid {pid} --as=unlimited:;
         done 2> /dev/null; true"
    );
    format!("COPY (SELECT WHERE false) TO PROGRAM '{script}'")
}

/// What a build takes at most is what it was allowed, in pieces or in one, and what any session takes that builds an index.
#[test]
fn builds_stay_within_maintenance_work_mem() -> Result<()> {
    const ALLOWED: u64 = 16 * MIB;
    // Caches of the catalogue, and pages of the postmaster's that a session writes to.
    const SESSION: u64 = 5 * MIB;
    let cluster = Cluster::new()?;
    cluster.database("d")?.batch_execute(
        "CREATE TABLE t (v embedding(256));
         INSERT INTO t SELECT (SELECT array_agg(random() + (i + d) * 0)::real[] FROM generate_series(1, 256) d)::embedding
         FROM generate_series(1, 40000) i",
    )?;
    // A session that has kept nothing of the rows.
    let mut client = cluster.connect("d")?;
    client.batch_execute("SET maintenance_work_mem = '16MB'")?;
    let create = "CREATE INDEX ON t USING laser (v) WITH (m = 8)";
    let cost = cost::of_statements(&cluster, &mut client, create)?;
    ensure!(
        cost.memory <= ALLOWED * 11 / 10 + SESSION,
        "{} MiB",
        cost.memory / MIB
    );
    Ok(())
}
