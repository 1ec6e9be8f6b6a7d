//! Every function, procedure, view and setting of the extension, as the catalogs list them, with
//! hostile arguments.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use laser_tests::{Cluster, failure};
use postgres::Client;
use postgres::error::SqlState;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::planted::{MALLORY, connect, database, untouched};

/// Calls of one function in a run for CI.
const CALLS: usize = 60;

/// Search paths that put other objects in front of the server's.
const PATHS: [&str; 4] = [
    "mallory, public, pg_catalog",
    "pg_temp, mallory, pg_catalog, public",
    "public, pg_catalog, pg_temp",
    "mallory",
];

struct Function {
    /// Qualified and quoted.
    name: String,
    /// `f` function, `p` procedure, `a` aggregate.
    kind: char,
    /// Types of the input arguments.
    arguments: Vec<String>,
}

/// Functions of the extension; their arguments as types.
fn functions(root: &mut Client) -> Result<Vec<Function>> {
    let rows = root.query(
        "SELECT format('%I.%I', n.nspname, p.proname), p.prokind::text,
                ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY a(t, i)
                      ORDER BY i)
         FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
         JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
           AND d.refclassid = 'pg_extension'::regclass
           AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'laser')
         ORDER BY p.oid",
        &[],
    )?;
    let functions: Vec<_> = rows
        .iter()
        .map(|row| Function {
            name: row.get(0),
            kind: row.get::<_, String>(1).chars().next().unwrap_or('f'),
            arguments: row.get(2),
        })
        .collect();
    ensure!(functions.len() > 100, "only {} functions", functions.len());
    Ok(functions)
}

/// Values of a type that an attacker would try. `others` are OIDs of relations of somebody else.
fn values(kind: &str, others: &[u32]) -> Vec<String> {
    let literals = |values: &[&str]| -> Vec<String> {
        let quoted = |v: &&str| format!("'{}'::{kind}", v.replace('\'', "''"));
        values.iter().map(quoted).collect()
    };
    let mut found = match kind {
        "integer" => literals(&["0", "1", "-1", "3", "2147483647", "-2147483648"]),
        "bigint" => literals(&[
            "0",
            "1",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
        ]),
        "oid" => literals(&["0", "1", "1259", "4294967295"]),
        "boolean" => literals(&["true", "false"]),
        "double precision" => literals(&["0", "-1", "1e308", "NaN", "Infinity", "-Infinity"]),
        "text" | "name" | "cstring" => {
            let mut found = literals(&[
                "",
                "a text",
                "absolute",
                "index",
                "no such name",
                "../../etc/passwd",
                "\u{10ffff}\u{fdfa}\u{202e}",
                "[1,2,3]",
                "[1e39]",
                "[]",
                "8",
                "id",
                "SELECT 1::bigint, 'a'",
                "SELECT i::bigint, 'text ' || i FROM pg_catalog.generate_series(1, 9) i",
                "SELECT i::bigint, mallory.helper(1)::text FROM pg_catalog.generate_series(1, 2) i",
                "SELECT id, body FROM owner.vectors",
                "SELECT id, e FROM owner.vectors",
                "TABLE owner.state",
                "DELETE FROM owner.vectors RETURNING id, body",
                "WITH d AS (DELETE FROM owner.vectors RETURNING id, body) SELECT * FROM d",
                "SELECT id, body FROM owner.vectors FOR UPDATE",
                "SELECT 1) AS query; DROP TABLE owner.vectors; --",
                "SELECT 1::bigint, pg_catalog.set_config('role', 'postgres', false)",
                "SELECT 1::bigint, pg_catalog.pg_read_file('PG_VERSION')",
                "COMMIT",
                "SELECT 1::bigint, 2::bigint, 0.5::double precision",
                "SELECT 1::bigint, 1::bigint",
            ]);
            found.push(format!("pg_catalog.repeat('x', 100000)::{kind}"));
            found
        }
        "text[]" => literals(&["{}", "{NULL}", "{a,b,NULL}", "{{a,b},{c,d}}", "[2:3]={a,b}"]),
        "cstring[]" => literals(&["{}", "{8}", "{-1}", "{0}", "{99999999999}", "{8,8}", "{x}"]),
        "double precision[]" | "real[]" | "numeric[]" | "integer[]" => literals(&[
            "{}",
            "{0}",
            "{1}",
            "{2,1,2}",
            "{NULL}",
            "{1,NULL}",
            "{{1,2},{3,4}}",
            "[5:6]={1,2}",
            "{2147483647,1}",
            "{-1,5}",
        ]),
        "bytea" => literals(&["", "\\x00", "\\xffffffffffffffffffffffff"]),
        "embedding" | "halfembedding" => [
            "[1,2,3]",
            "[0,0,0]",
            "[65504]",
            "[1,2]",
            "[1,2,3,4,5,6,7,8]",
        ]
        .iter()
        .map(|v| format!("'{v}'::public.{kind}"))
        .collect(),
        "regclass" => {
            let mut found = literals(&["0", "1", "1259", "4294967295"]);
            found.extend(others.iter().map(|oid| format!("{oid}::regclass")));
            found.push("'pg_temp.own_e'::regclass".into());
            found.push("'pg_temp.own'::regclass".into());
            found
        }
        "anyelement" => [
            "NULL::owner.vectors",
            "NULL::pg_temp.own",
            "NULL::pg_catalog.pg_class",
            "1",
        ]
        .map(String::from)
        .to_vec(),
        "regconfig" => literals(&["pg_catalog.simple", "0", "1"]),
        // internal and what else SQL has no values of
        _ => Vec::new(),
    };
    found.push("NULL".into());
    found
}

/// A session of mallory's with objects of his own.
fn attack(cluster: &Cluster, path: &str) -> Result<Client> {
    let mut mallory = connect(cluster, "d", MALLORY)?;
    mallory.batch_execute(&format!(
        "CREATE TEMP TABLE own (id bigint, e public.embedding(3));
         INSERT INTO own SELECT i, ('[1,2,' || i || ']')::public.embedding
         FROM pg_catalog.generate_series(1, 20) i;
         CREATE INDEX own_e ON own USING laser (e);
         CREATE TEMP TABLE pg_class (oid oid, relname name);
         CREATE TEMP TABLE pg_extension (oid oid, extname name, extnamespace oid);
         SET statement_timeout = '5s';
         SET search_path = {path}"
    ))?;
    Ok(mallory)
}

/// What must hold after a statement of mallory's, which ended so.
fn check(
    root: &mut Client,
    mallory: &mut Client,
    pid: i32,
    call: &str,
    result: Result<(), postgres::Error>,
) -> Result<bool> {
    if let Err(error) = &result
        && error.as_db_error().is_none_or(|e| {
            ["57P01", "57P02", "57P03", "58000"].contains(&e.code().code())
                || e.message().contains("panicked")
        })
    {
        bail!("{call}: {error}");
    }
    let locks = root
        .query_one(
            "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
             WHERE l.pid = $1 AND c.relowner <> 'mallory'::regrole AND c.oid >= 16384
               AND c.relkind IN ('r', 'i', 'p', 't')",
            &[&pid],
        )
        .with_context(|| format!("after {call}"))?
        .get::<_, i64>(0);
    ensure!(
        locks == 0,
        "{call} keeps {locks} locks of others' relations"
    );
    mallory.batch_execute("ROLLBACK")?;
    let user: String = mallory
        .query_one("SELECT current_user::pg_catalog.text", &[])?
        .get(0);
    ensure!(user == MALLORY, "{user} after {call}");
    Ok(result.is_ok())
}

/// A call of a function with these arguments.
fn call(function: &Function, arguments: &[String]) -> String {
    let (name, list) = (&function.name, arguments.join(", "));
    match function.kind {
        'p' => format!("CALL {name}({list})"),
        'a' => format!("SELECT {name}(a) FROM (VALUES ({list}), (NULL)) v(a)"),
        _ => format!("SELECT * FROM {name}({list})"),
    }
}

fn seconds() -> Option<u64> {
    std::env::var("LASER_ADVERSARY_SECONDS").ok()?.parse().ok()
}

/// Whether another's relation is among the arguments.
fn names_another(arguments: &[String], others: &[u32]) -> bool {
    others
        .iter()
        .any(|oid| arguments.contains(&format!("{oid}::regclass")))
}

#[test]
fn no_role_rises_by_any_function() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut root = database(&cluster, "d")?;
    // Their own checks are what counts, not that EXECUTE is revoked.
    root.batch_execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO PUBLIC")?;
    let others: Vec<u32> = root
        .query(
            "SELECT oid FROM pg_class WHERE relnamespace = 'owner'::regnamespace ORDER BY oid",
            &[],
        )?
        .iter()
        .map(|row| row.get(0))
        .collect();
    let contents = "SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM owner.vectors t";
    let before: String = root.query_one(contents, &[])?.get(0);
    let started: String = root
        .query_one("SELECT pg_postmaster_start_time()::text", &[])?
        .get(0);
    let functions = functions(&mut root)?;

    let (mut done, mut succeeded) = (0u64, 0u64);
    let start = Instant::now();
    for round in 0.. {
        let mut random = ChaCha8Rng::seed_from_u64(round);
        let mut mallory = attack(&cluster, PATHS[round as usize % PATHS.len()])?;
        let pid: i32 = mallory.query_one("SELECT pg_backend_pid()", &[])?.get(0);
        for function in &functions {
            let choices: Vec<_> = function
                .arguments
                .iter()
                .map(|kind| values(kind, &others))
                .collect();
            let all: usize = choices.iter().map(Vec::len).product();
            for number in 0..CALLS.min(all) {
                let arguments: Vec<String> = choices
                    .iter()
                    .enumerate()
                    .map(|(at, values)| {
                        // Each value of the first argument once, as far as calls reach.
                        if at == 0 && number < values.len() && values.len() <= CALLS {
                            values[number].clone()
                        } else {
                            values.choose(&mut random).expect("not empty").clone()
                        }
                    })
                    .collect();
                let call = call(function, &arguments);
                let block = function.kind != 'p' || random.random_bool(0.2);
                if block {
                    mallory.batch_execute("BEGIN")?;
                }
                let result = mallory.batch_execute(&call);
                let succeeds = check(&mut root, &mut mallory, pid, &call, result)?;
                let null = arguments.iter().any(|a| a == "NULL");
                ensure!(
                    !(succeeds && !null && names_another(&arguments, &others)),
                    "{call} has succeeded"
                );
                done += 1;
                succeeded += u64::from(succeeds);
            }
            untouched(&mut root, &function.name)?;
        }
        if start.elapsed() >= Duration::from_secs(seconds().unwrap_or(0)) {
            break;
        }
    }
    ensure!(
        done > 1000 && succeeded > 100,
        "{succeeded} of {done} calls"
    );
    ensure!(root.query_one(contents, &[])?.get::<_, String>(0) == before);
    let now: String = root
        .query_one("SELECT pg_postmaster_start_time()::text", &[])?
        .get(0);
    ensure!(now == started && !cluster.log().contains("terminated by signal"));
    println!("{done} calls, {succeeded} succeeded, {:?}", start.elapsed());
    Ok(())
}

/// What those do who have rights, on a path with others' objects on it.
#[test]
fn nothing_planted_is_run_by_others() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut root = database(&cluster, "d")?;
    // What the extension keeps means nothing of anybody else.
    let foreign: Vec<String> = root
        .query(
            "SELECT pg_describe_object(r.refclassid, r.refobjid, 0)
             FROM pg_depend m
             JOIN pg_depend r ON (r.classid, r.objid) = (m.classid, m.objid)
               OR r.classid = 'pg_rewrite'::regclass AND m.classid = 'pg_class'::regclass
                  AND r.objid IN (SELECT oid FROM pg_rewrite WHERE ev_class = m.objid)
               OR r.classid = 'pg_constraint'::regclass AND m.classid = 'pg_class'::regclass
                  AND r.objid IN (SELECT oid FROM pg_constraint WHERE conrelid = m.objid)
             WHERE m.deptype = 'e' AND m.refclassid = 'pg_extension'::regclass
               AND m.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'laser')
               AND r.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
               AND r.refobjid >= 16384
               AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.deptype IN ('e', 'i')
                               AND (e.classid, e.objid) = (r.refclassid, r.refobjid))",
            &[],
        )?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(foreign.is_empty(), "the extension uses {foreign:?}");

    let views: Vec<String> = root
        .query(
            "SELECT format('%I.%I', relnamespace::regnamespace, relname)
             FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.deptype = 'e'
             WHERE relkind = 'v' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'laser')",
            &[],
        )?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(views.len() >= 3, "{views:?}");
    const SIDE: &str = "'SELECT id, body FROM owner.vectors'";
    for path in PATHS {
        root.batch_execute(&format!("SET search_path = {path}"))?;
        for view in &views {
            root.batch_execute(&format!("SELECT * FROM {view}"))?;
        }
        root.batch_execute(
            "DROP TABLE IF EXISTS owner.filled;
             CREATE TABLE owner.filled (body pg_catalog.text, e public.embedding);
             INSERT INTO owner.filled VALUES ('one'), ('two');
             DELETE FROM owner.state",
        )?;
        for sql in [
            "CALL public.laser_embed_table('owner.filled', 'body', 'e', 1)".to_owned(),
            format!("SELECT * FROM public.laser_mine({SIDE}, {SIDE})"),
            format!("SELECT * FROM public.laser_mine({SIDE}, {SIDE}, method => 'index')"),
            format!("SELECT * FROM public.laser_knn_join({SIDE}, {SIDE}, 2)"),
            format!("SELECT * FROM public.laser_mine_update('owner.state', {SIDE}, {SIDE}, 2)"),
            format!(
                "SELECT * FROM public.laser_mine_update('owner.state', {SIDE},
                     'SELECT id, body FROM owner.vectors LIMIT 20', 2)"
            ),
            "SELECT * FROM public.laser_mine_stored('owner.state')".to_owned(),
            "SELECT * FROM public.laser_index_info('owner.vectors_e')".to_owned(),
            "SELECT public.laser_merge('owner.vectors_e')".to_owned(),
            "SELECT public.laser_merge('owner.vectors_vec')".to_owned(),
            "SELECT public.laser_prewarm('owner.vectors_vec')".to_owned(),
            "SELECT public.laser_index_check('owner.vectors_e')".to_owned(),
            "SELECT public.laser_index_recall('owner.vectors_body', 3, 3)".to_owned(),
            "SELECT public.laser_index_tune('owner.vectors_body', 0.9, 3, 3)".to_owned(),
            "SELECT public.laser_hybrid(NULL::owner.vectors, 'body', 'one text', 3)".to_owned(),
            "SELECT public.laser_hybrid(NULL::owner.vectors, 'body', 'one text', 3, key_column => 'id')".to_owned(),
        ] {
            root.batch_execute(&sql)
                .with_context(|| format!("{path}: {sql}"))?;
            untouched(&mut root, &sql)?;
        }
        // These run the owner's careless function, which finds nothing on its path.
        for sql in [
            "laser_index_check",
            "laser_index_recall",
            "laser_index_tune",
        ] {
            let sql = format!("SELECT public.{sql}('owner.vectors_vec')");
            let (code, message, _) = failure(&mut root, &sql)?;
            ensure!(code == SqlState::UNDEFINED_FUNCTION, "{sql}: {message}");
            untouched(&mut root, &sql)?;
        }
    }
    Ok(())
}

#[test]
fn no_role_rises_by_any_setting() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut root = database(&cluster, "d")?;
    let settings = root.query(
        "SELECT name, context, coalesce(min_val, ''), coalesce(max_val, ''),
                coalesce(enumvals, '{}')
         FROM pg_settings WHERE name LIKE 'laser.%' ORDER BY name",
        &[],
    )?;
    ensure!(settings.len() >= 12, "{} settings", settings.len());
    let started: String = root
        .query_one("SELECT pg_postmaster_start_time()::text", &[])?
        .get(0);
    let mut mallory = attack(&cluster, PATHS[0])?;
    let pid: i32 = mallory.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let statements = [
        "SELECT public.laser_embed('a text')",
        "SELECT id FROM own ORDER BY e OPERATOR(public.<=>) '[1,2,3]'::public.embedding LIMIT 3",
        "SELECT * FROM public.laser_mine('SELECT id, e FROM own', 'SELECT id, e FROM own')",
        "SELECT * FROM public.laser_models",
        "SELECT * FROM public.laser_encoder_status",
    ];
    for row in &settings {
        let (name, context): (String, String) = (row.get(0), row.get(1));
        let mut values: Vec<String> = [row.get::<_, String>(2), row.get(3)]
            .into_iter()
            .chain(row.get::<_, Vec<String>>(4))
            .chain(
                [
                    "",
                    "-1",
                    "0",
                    "on",
                    "2147483648",
                    "1e30",
                    "/etc",
                    "../x",
                    "'; SELECT 1; --",
                ]
                .map(str::to_owned),
            )
            .collect();
        values.push("x".repeat(100_000));
        for value in values {
            let sql = format!("SET {name} = '{}'", value.replace('\'', "''"));
            match mallory.batch_execute(&sql) {
                Ok(()) => ensure!(context == "user", "{sql} of a role without rights"),
                Err(error) => {
                    let mut refused = vec![SqlState::INVALID_PARAMETER_VALUE];
                    if context != "user" {
                        refused.push(SqlState::CANT_CHANGE_RUNTIME_PARAM);
                        refused.push(SqlState::INSUFFICIENT_PRIVILEGE);
                    }
                    let code = error.code();
                    ensure!(
                        refused.iter().any(|c| Some(c) == code),
                        "{name} = {value:.20}: {error}"
                    );
                    continue;
                }
            }
            for statement in statements {
                mallory.batch_execute("BEGIN")?;
                let result = mallory.batch_execute(statement);
                check(
                    &mut root,
                    &mut mallory,
                    pid,
                    &format!("{name} = {value:.20}: {statement}"),
                    result,
                )?;
            }
        }
        if context == "user" {
            mallory.batch_execute(&format!("RESET {name}"))?;
        }
    }
    untouched(&mut root, "all settings")?;
    let now: String = root
        .query_one("SELECT pg_postmaster_start_time()::text", &[])?
        .get(0);
    ensure!(now == started && !cluster.log().contains("terminated by signal"));
    Ok(())
}
