//! ALTER EXTENSION UPDATE: what it leaves is what CREATE EXTENSION makes, and tables and indexes of the
//! older version work on.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use laser_tests::Cluster;
use postgres::Client;
use postgres::error::SqlState;

/// The whole script of a version that upgrades start from; what is installed are the newest one and
/// the steps to it.
const OLD: &str = include_str!("../fixtures/laser--0.1.0.sql");

/// What there is of the extension, a line for each thing that a user or a dump could notice. OIDs
/// and the order of creation are left out.
const CATALOGUE: &str = r"
WITH member AS (
    SELECT classid, objid, pg_describe_object(classid, objid, 0) AS what FROM pg_depend
    WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
      AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'laser'))
SELECT format('%s: comment %s', what, obj_description(objid, classid::regclass::name)) FROM member
UNION ALL
SELECT format('%s: initial privileges %s', what, initprivs) FROM member
JOIN pg_init_privs p ON p.classoid = classid AND p.objoid = objid AND p.objsubid = 0
UNION ALL
SELECT format('%s: %s privileges %s support %s', what,
              CASE WHEN prokind = 'a' THEN proargnames::text ELSE pg_get_functiondef(p.oid) END,
              proacl, prosupport::regproc)
FROM member JOIN pg_proc p ON classid = 'pg_proc'::regclass AND objid = p.oid
UNION ALL
SELECT format('%s: %s %s', what, pg_get_viewdef(c.oid), relacl)
FROM member JOIN pg_class c ON classid = 'pg_class'::regclass AND objid = c.oid
UNION ALL
SELECT format('%s: column %s %s %s not null %s comment %s', what, attname,
              format_type(atttypid, atttypmod), attnum, attnotnull, col_description(c.oid, attnum))
FROM member JOIN pg_class c ON classid = 'pg_class'::regclass AND objid = c.oid
JOIN pg_attribute ON attrelid = c.oid AND NOT attisdropped
UNION ALL
SELECT format('%s: constraint %s %s', what, conname, pg_get_constraintdef(n.oid))
FROM member JOIN pg_constraint n ON classid = 'pg_class'::regclass AND conrelid = objid
UNION ALL
SELECT format('%s: category %s preferred %s storage %s alignment %s', what, typcategory,
              typispreferred, typstorage, typalign)
FROM member JOIN pg_type t ON classid = 'pg_type'::regclass AND objid = t.oid
UNION ALL
SELECT format('%s: %s %s %s %s', what, oprcode, oprrest,
              oprcom::regoperator, oprnegate::regoperator)
FROM member JOIN pg_operator o ON classid = 'pg_operator'::regclass AND objid = o.oid
UNION ALL
SELECT format('%s: %s %s', what, pg_describe_object(d.classid, d.objid, 0), d.deptype)
FROM member JOIN pg_depend d ON d.refclassid = member.classid AND d.refobjid = member.objid
WHERE d.classid IN ('pg_amop'::regclass, 'pg_amproc'::regclass, 'pg_cast'::regclass)";

fn catalogue(client: &mut Client) -> Result<BTreeSet<String>> {
    let rows = client.query(CATALOGUE, &[])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Puts the old version's script beside the installed ones.
fn install_old(cluster: &Cluster) -> Result<()> {
    let share = cluster.psql(
        "postgres",
        "SELECT setting FROM pg_config WHERE name = 'SHAREDIR'",
    )?;
    let folder = Path::new(&share).join("extension");
    let file = tempfile::NamedTempFile::new_in(&folder)?;
    fs::write(file.path(), OLD)?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(file.path(), readable)?;
    file.persist(folder.join("laser--0.1.0.sql"))?;
    Ok(())
}

/// A database with the extension in a schema of its own, which the search path begins with.
fn database(cluster: &Cluster, name: &str, version: &str) -> Result<Client> {
    cluster.psql("postgres", &format!("CREATE DATABASE {name}"))?;
    let mut client = cluster.connect(name)?;
    client.batch_execute(&format!(
        "CREATE SCHEMA x; CREATE EXTENSION laser SCHEMA x {version}; SET search_path = x, public"
    ))?;
    Ok(client)
}

#[test]
fn an_updated_database_is_like_a_new_one() -> Result<()> {
    let cluster = Cluster::new()?;
    install_old(&cluster)?;
    let mut new = database(&cluster, "new", "")?;
    let mut old = database(&cluster, "old", "VERSION '0.1.0'")?;
    old.batch_execute(
        "CREATE TABLE public.t (id serial, body text, v embedding(8));
         INSERT INTO t (body, v)
         SELECT 'sentence ' || i, (SELECT array_agg(sin(i * n)) FROM generate_series(1, 8) n)::embedding
         FROM generate_series(1, 2000) i;
         CREATE INDEX ti ON t USING laser (v);
         CREATE INDEX tb ON t USING laser (body) WHERE id <= 100;
         CREATE VIEW public.mine AS SELECT name, error FROM laser_models;
         CREATE TABLE public.state (LIKE laser_mining_state INCLUDING ALL)",
    )?;
    let nearest = "SELECT string_agg(id::text, ' ') FROM
         (SELECT id FROM t ORDER BY v <=> (SELECT v FROM t WHERE id = 700) LIMIT 10) s";
    let before: String = old.query_one(nearest, &[])?.get(0);

    // Until then, what the library gives has the place that the old declaration means.
    let failing =
        "SELECT laser_embed('x'); SELECT count(*) FROM laser_models WHERE error IS NOT NULL";
    let messages = old.simple_query(failing)?;
    let counts: Vec<_> = messages
        .iter()
        .filter_map(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
        .collect();
    ensure!(counts.last().is_some_and(|n| n == "0"), "{counts:?}");
    old.batch_execute("ALTER EXTENSION laser UPDATE")?;
    let version = "SELECT extversion FROM pg_extension WHERE extname = 'laser'";
    let of_old: String = old.query_one(version, &[])?.get(0);
    let of_new: String = new.query_one(version, &[])?.get(0);
    ensure!(of_old == of_new && of_old != "0.1.0", "{of_old}");
    let (in_old, in_new) = (catalogue(&mut old)?, catalogue(&mut new)?);
    let missing: Vec<_> = in_new.difference(&in_old).collect();
    let surplus: Vec<_> = in_old.difference(&in_new).collect();
    ensure!(in_new.len() > 300, "{}", in_new.len());
    ensure!(
        missing.is_empty() && surplus.is_empty(),
        "missing after the update: {missing:#?}\nonly after the update: {surplus:#?}"
    );

    old.batch_execute("SELECT FROM mine")?;
    let after: String = old.query_one(nearest, &[])?.get(0);
    ensure!(after == before, "{after} instead of {before}");
    let found = old.query("SELECT laser_index_check('ti')", &[])?;
    ensure!(found.is_empty(), "{:?}", found[0].get::<_, String>(0));
    // The procedure is the new one: it labels the column.
    old.batch_execute("ALTER TABLE t ADD e embedding")?;
    old.batch_execute("CALL laser_embed_table('t', 'body', 'e')")?;
    let models = "SELECT count(*) FROM laser_models_used WHERE relation = 't'::regclass";
    ensure!(old.query_one(models, &[])?.get::<_, i64>(0) == 2);
    Ok(())
}

/// Every version that there was leads to the newest one.
#[test]
fn there_is_a_way_from_every_version() -> Result<()> {
    let cluster = Cluster::new()?;
    install_old(&cluster)?;
    let paths = "SELECT count(*) FROM pg_extension_update_paths('laser')
         WHERE target = (SELECT default_version FROM pg_available_extensions WHERE name = 'laser')
           AND source <> target AND path IS NULL";
    ensure!(cluster.psql("postgres", paths)? == "0");
    ensure!(cluster.psql("postgres", &paths.replace("IS NULL", "IS NOT NULL"))? != "0");
    Ok(())
}

/// `pg_upgrade` takes indexes as they are, also those that could not be rebuilt: their model is not there, or older versions let them have
/// what no build accepts.
#[test]
fn a_cluster_is_upgraded_with_its_indexes() -> Result<()> {
    let mut old = Cluster::builder().preload(false).start()?;
    let mut client = old.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (id int, v embedding(8));
         INSERT INTO t SELECT i, (SELECT array_agg(sin(i * n)) FROM generate_series(1, 8) n)::real[]::embedding
         FROM generate_series(1, 3000) i;
         CREATE INDEX ti ON t USING laser (v); INSERT INTO t SELECT -id, v FROM t WHERE id < 50;
         CREATE TABLE gone (body text); CREATE INDEX gi ON gone USING laser (body);
         CREATE TABLE odd (v embedding(8)); CREATE INDEX oi ON odd USING laser (v);
         CREATE UNLOGGED TABLE loose (v embedding(8)); INSERT INTO loose SELECT v FROM t; CREATE INDEX li ON loose USING laser (v);
         CREATE UNLOGGED TABLE lost (body text); CREATE INDEX lo ON lost USING laser (body);
         CREATE UNLOGGED TABLE open (v embedding); INSERT INTO open SELECT v FROM t; CREATE INDEX op ON open USING laser (v);
         CREATE UNLOGGED TABLE early (v embedding(8)); INSERT INTO early SELECT v FROM t; CREATE INDEX ea ON early USING laser (v);
         CREATE TABLE wide (v embedding(4000)); CREATE INDEX wi ON wide USING laser (v); ALTER INDEX wi SET (quantization = 'f32');
         UPDATE pg_class SET reloptions = '{model=not-there}' WHERE relname IN ('gi', 'oi', 'lo')",
    )?;
    let error = client
        .batch_execute("ALTER INDEX gi SET (model = 'a@b@c')")
        .expect_err("no name of a model");
    ensure!(
        error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE),
        "{error:?}"
    );
    let nearest = "SELECT array_agg(id) FROM
         (SELECT id FROM t ORDER BY v <=> (SELECT v FROM t WHERE id = 7) LIMIT 20) s";
    let before: Vec<i32> = client.query_one(nearest, &[])?.get(0);
    let binaries = "SELECT setting FROM pg_config WHERE name = 'BINDIR'";
    let binaries = old.psql("postgres", binaries)?;
    drop(client);
    let mut new = Cluster::builder().preload(false).start()?;
    old.stop("fast")?;
    new.stop("fast")?;
    let (from, to) = (old.data(), new.data());
    let (old_port, new_port) = (old.port().to_string(), new.port().to_string());
    let output = new
        .command("pg_upgrade")
        .current_dir(new.scratch()?)
        .args(["-b", &binaries, "-B", &binaries, "-U", "postgres"])
        .args(["-p", &old_port, "-P", &new_port])
        .arg("-d")
        .arg(from)
        .arg("-D")
        .arg(to)
        .arg("-s")
        .arg(new.socket())
        .output()?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    new.start()?;
    let mut client = new.connect("d")?;
    client.batch_execute("SET enable_seqscan = off; ANALYZE t")?;
    let after: Vec<i32> = client.query_one(nearest, &[])?.get(0);
    ensure!(after == before, "{after:?} {before:?}");
    for index in ["ti", "gi", "oi", "wi", "li", "lo", "op", "ea"] {
        let damage = client.query("SELECT laser_index_check($1::text::regclass)", &[&index])?;
        ensure!(damage.is_empty(), "{index}");
    }
    client.batch_execute("INSERT INTO t SELECT id, v FROM t")?;
    client.batch_execute("VACUUM t")?;
    // Unlogged ones are empty after a crash, which must not find them without what they begin with.
    client.batch_execute("ANALYZE loose, lost, open")?;
    drop(client);
    new.stop("immediate")?;
    new.start()?;
    let mut client = new.connect("d")?;
    for index in ["li", "lo", "op", "ea"] {
        let damage = client.query("SELECT laser_index_check($1::text::regclass)", &[&index])?;
        ensure!(damage.is_empty(), "{index}");
    }
    client.batch_execute("SET enable_seqscan = off")?;
    // Nobody has analyzed the second before the crash.
    for table in ["loose", "early"] {
        client.batch_execute(&format!("INSERT INTO {table} SELECT v FROM t"))?;
        let found = format!(
            "SELECT count(*) FROM (SELECT FROM {table} ORDER BY v <=> '[1,2,3,4,5,6,7,8]' LIMIT 20) s"
        );
        ensure!(client.query_one(&found, &[])?.get::<_, i64>(0) == 20);
    }
    client.batch_execute("VACUUM early")?;
    client.batch_execute("VACUUM open")?;
    // The number of dimensions is what the next rows say.
    client.batch_execute("INSERT INTO open VALUES ('[1,2]')")?;
    Ok(())
}
