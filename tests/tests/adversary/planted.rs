//! A database in which somebody has planted functions and operators that others may call by
//! mistake, and the table that tells whether anybody did.

use anyhow::{Context, Result, ensure};
use laser_tests::Cluster;
use postgres::Client;

/// The role without rights.
pub const MALLORY: &str = "mallory";
/// A role that owns tables and is no superuser.
pub const OWNER: &str = "owner";

/// Pairs of types for comparisons that are planted, and what `+`, `-`, `*` and `/` of numbers give.
const COMPARED: &[(&str, &str)] = &[
    ("oid", "oid"),
    ("oid", "regclass"),
    ("regclass", "oid"),
    ("regclass", "regclass"),
    ("name", "name"),
    ("\"char\"", "\"char\""),
    ("integer", "integer"),
    ("bigint", "bigint"),
    ("bigint", "integer"),
    ("integer", "bigint"),
    ("smallint", "integer"),
    ("tid", "tid"),
    ("text", "text"),
    ("interval", "interval"),
    ("double precision", "double precision"),
    ("numeric", "numeric"),
];
const COUNTED: &[(&str, &str, &str)] = &[
    ("bigint", "interval", "interval"),
    ("bigint", "bigint", "bigint"),
    ("bigint", "integer", "bigint"),
    ("bigint", "numeric", "numeric"),
    ("integer", "integer", "integer"),
    ("timestamptz", "timestamptz", "interval"),
    ("double precision", "interval", "interval"),
];

/// A database with laser in it, in which mallory had planted objects before. Whoever runs one of
/// them and is not mallory is written into the table `canary`.
pub fn database(cluster: &Cluster, name: &str) -> Result<Client> {
    cluster
        .connect("postgres")?
        .batch_execute(&format!("CREATE DATABASE {name}"))?;
    let mut root = cluster.connect(name)?;
    root.batch_execute(&format!(
        "DO $$ BEGIN
             CREATE ROLE {MALLORY} LOGIN; CREATE ROLE {OWNER} LOGIN;
         EXCEPTION WHEN duplicate_object THEN END $$;
         CREATE SCHEMA {MALLORY} AUTHORIZATION {MALLORY};
         CREATE SCHEMA {OWNER} AUTHORIZATION {OWNER};
         GRANT CREATE ON SCHEMA public TO {MALLORY};
         GRANT CREATE, TEMPORARY ON DATABASE {name} TO {MALLORY};
         CREATE TABLE public.canary (who name, what text);
         GRANT INSERT ON public.canary TO {OWNER}"
    ))?;
    let mut mallory = connect(cluster, name, MALLORY)?;
    for schema in [MALLORY, "public"] {
        mallory.batch_execute(&plants(schema))?;
    }
    // In public, where mallory has planted. The session's own questions are answered by the server.
    root.batch_execute("CREATE EXTENSION laser; SET search_path = pg_catalog")?;
    let mut owner = connect(cluster, name, OWNER)?;
    // helper is found by the search path, as a careless owner writes it. From PostgreSQL 17 on CREATE INDEX has a safe path,
    // on which it is not: there somebody has made the function careless later.
    owner.batch_execute(
        "SET search_path = owner, public;
         CREATE FUNCTION helper(i integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT $1';
         CREATE FUNCTION vec(i integer) RETURNS embedding LANGUAGE plpgsql IMMUTABLE AS
         $$ BEGIN RETURN array_fill(1 + helper(i) % 7, ARRAY[8])::public.embedding; END $$;
         ALTER FUNCTION vec(integer) SET search_path = owner, public;
         CREATE TABLE vectors AS SELECT i AS id, 'text ' || i AS body, vec(i)::embedding(8) AS e
         FROM generate_series(1, 50) i;
         CREATE INDEX vectors_e ON vectors USING laser (e);
         CREATE INDEX vectors_body ON vectors USING laser (body);
         CREATE INDEX vectors_vec ON vectors USING laser ((vec(id)::embedding(8)));
         ALTER FUNCTION vec(integer) RESET search_path;
         CREATE INDEX vectors_id ON vectors (id);
         CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL)",
    )?;
    Ok(root)
}

/// A function that tells who runs it.
fn plant(schema: &str, name: &str, arguments: &str, result: &str) -> String {
    format!(
        "CREATE FUNCTION {schema}.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS $$
         BEGIN PERFORM {schema}.note('{name}({arguments})'); RETURN NULL; END $$;"
    )
}

fn plants(schema: &str) -> String {
    let mut sql = format!(
        "SET search_path = pg_catalog;
         CREATE FUNCTION {schema}.note(what text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.canary VALUES (current_user, what);
         EXCEPTION WHEN insufficient_privilege THEN END $$;"
    );
    for (name, arguments, result) in [
        ("helper", "integer", "integer"),
        ("round", "numeric, integer", "numeric"),
        ("round", "numeric", "numeric"),
        ("cardinality", "tid[]", "integer"),
        ("clock_timestamp", "", "timestamptz"),
        ("current_setting", "text", "text"),
        ("set_config", "text, text, boolean", "text"),
        ("pg_relation_size", "regclass", "bigint"),
        ("format_type", "oid, integer", "text"),
    ] {
        sql.push_str(&plant(schema, name, arguments, result));
    }
    let compared = COMPARED.iter().map(|(left, right)| {
        let operators: &[&str] = &["=", "<>", "<", ">", "<=", ">="];
        (*left, *right, "boolean", operators)
    });
    let counted = COUNTED.iter().map(|(left, right, result)| {
        let operators: &[&str] = &["+", "-", "*", "/"];
        (*left, *right, *result, operators)
    });
    for (number, (left, right, result, operators)) in compared.chain(counted).enumerate() {
        let name = format!("planted_{number}");
        let arguments = format!("{left}, {right}");
        sql.push_str(&plant(schema, &name, &arguments, result));
        for operator in operators {
            sql.push_str(&format!(
                "CREATE OPERATOR {schema}.{operator}
                 (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {schema}.{name});"
            ));
        }
    }
    sql
}

pub fn connect(cluster: &Cluster, database: &str, role: &str) -> Result<Client> {
    let mut config = cluster.config(database);
    config.user(role);
    config
        .connect(postgres::NoTls)
        .with_context(|| format!("connecting as {role}:\n{}", cluster.log()))
}

/// Nobody but mallory has run what mallory planted.
pub fn untouched(root: &mut Client, after: &str) -> Result<()> {
    let rows = root.query("SELECT who::text, what FROM public.canary LIMIT 5", &[])?;
    let rows: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    ensure!(rows.is_empty(), "after {after}, others have run: {rows:?}");
    Ok(())
}
