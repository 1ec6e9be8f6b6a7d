//! The types through programs and protocols: binary COPY, the binary protocol, pg_dump, costs.

use anyhow::{Result, ensure};
use laser_tests::Cluster;
use postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use std::error::Error;
use std::io::{Read, Write};

const TABLE: &str = "CREATE TABLE t (i int, e embedding(3), h halfembedding(2), list embedding[]);
    INSERT INTO t SELECT i, ARRAY[i, sin(i), 1e-20 * i]::embedding, ARRAY[i, cos(i)]::halfembedding,
        ARRAY['[1]', '[2,3]']::embedding[] FROM generate_series(1, 500) i;
    INSERT INTO t VALUES (0, NULL, NULL, NULL);
    CREATE INDEX t_e ON t (e); CREATE INDEX t_h ON t USING hash (h);
    CREATE INDEX t_near ON t USING laser (e embedding_l2_ops) WITH (m = 8, quantization = f16) WHERE i > 9;
    CREATE INDEX t_text ON t USING laser ((i::text));
    CREATE VIEW near AS SELECT i FROM t ORDER BY e <=> '[1,2,3]' LIMIT 3;";
const SUM: &str = "SELECT md5(string_agg(t::text, '|' ORDER BY i)) FROM t";

/// Raw bytes as a parameter of any type.
#[derive(Debug)]
struct Raw(Vec<u8>);

impl ToSql for Raw {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut postgres::types::private::BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

#[test]
fn binary_copy_and_dump_keep_everything() -> Result<()> {
    let cluster = Cluster::builder().preload(false).start()?;
    let mut client = cluster.database("a")?;
    client.batch_execute(TABLE)?;
    let sum: String = client.query_one(SUM, &[])?.get(0);

    // COPY in binary, out and in again.
    let mut bytes = Vec::new();
    client
        .copy_out("COPY t TO STDOUT (FORMAT binary)")?
        .read_to_end(&mut bytes)?;
    client.batch_execute("TRUNCATE t")?;
    let mut writer = client.copy_in("COPY t FROM STDIN (FORMAT binary)")?;
    writer.write_all(&bytes)?;
    writer.finish()?;
    assert_eq!(sum, client.query_one(SUM, &[])?.get::<_, String>(0));

    // A damaged copy is refused: the unused field of the first embedding is set.
    let at = bytes
        .windows(8)
        .position(|w| w == [0, 0, 0, 16, 0, 3, 0, 0])
        .expect("an embedding");
    bytes[at + 7] = 1;
    let mut writer = client.copy_in("COPY t FROM STDIN (FORMAT binary)")?;
    writer.write_all(&bytes)?;
    let error = writer.finish().unwrap_err();
    let message = error
        .as_db_error()
        .map(|e| e.message().to_owned())
        .unwrap_or_default();
    assert_eq!(message, "invalid binary representation of type embedding");

    // pg_dump and pg_restore, in both of their formats.
    let folder = cluster.scratch()?;
    for format in ["custom", "plain"] {
        let file = folder.join(format!("dump-{format}")).display().to_string();
        cluster.run("pg_dump", &["-F", format, "-f", &file, "a"])?;
        let copy = format!("copy_{format}");
        cluster.psql("postgres", &format!("CREATE DATABASE {copy}"))?;
        if format == "custom" {
            cluster.run("pg_restore", &["-d", &copy, "--exit-on-error", &file])?;
        } else {
            cluster.run(
                "psql",
                &[
                    "-X",
                    "-q",
                    "-v",
                    "ON_ERROR_STOP=1",
                    "-d",
                    &copy,
                    "-f",
                    &file,
                ],
            )?;
        }
        assert_eq!(cluster.psql(&copy, SUM)?, sum);
        let near = "SELECT string_agg(i::text, ',') FROM near";
        assert_eq!(cluster.psql(&copy, near)?, cluster.psql("a", near)?);
        let indexes = "SELECT pg_get_indexdef(indexrelid) FROM pg_index
            WHERE indrelid = 't'::regclass ORDER BY indexrelid::regclass::text";
        assert_eq!(cluster.psql(&copy, indexes)?, cluster.psql("a", indexes)?);
        let problems =
            "SELECT laser_index_check('t_near') UNION ALL SELECT laser_index_check('t_text')";
        assert_eq!(cluster.psql(&copy, problems)?, "");
        let live = "SELECT live FROM laser_index_info('t_near')";
        assert_eq!(cluster.psql(&copy, live)?, "491");
    }
    Ok(())
}

#[test]
fn the_binary_protocol_is_pgvectors() -> Result<()> {
    let cluster = Cluster::builder().preload(false).start()?;
    let mut client = cluster.database("a")?;
    let send = |client: &mut postgres::Client, kind: &str, bytes: &[u8]| {
        client
            .query_one(
                &format!("SELECT ($1::{kind})::text"),
                &[&Raw(bytes.to_vec())],
            )
            .map(|row| row.get::<_, String>(0))
            .map_err(|error| match error.as_db_error() {
                Some(db) => format!("{} {}", db.code().code(), db.message()),
                None => error.to_string(),
            })
    };
    let one = 1f32.to_be_bytes();
    let embedding = [&[0, 2, 0, 0], &one[..], &(-0.5f32).to_be_bytes()[..]].concat();
    assert_eq!(
        send(&mut client, "embedding", &embedding),
        Ok("[1,-0.5]".to_owned())
    );
    assert_eq!(
        send(&mut client, "halfembedding", &[0, 1, 0, 0, 0x3c, 0]),
        Ok("[1]".to_owned())
    );
    for (bytes, error) in [
        (
            &[][..],
            "22P03 invalid binary representation of type embedding",
        ),
        (
            &[0, 1],
            "22P03 invalid binary representation of type embedding",
        ),
        (
            &[0, 0, 0, 0],
            "22000 embedding must have at least 1 dimension",
        ),
        (
            &[0xff, 0xff, 0, 0],
            "22000 embedding must have at least 1 dimension",
        ),
        (
            &[0x7f, 0xff, 0, 0],
            "54000 embedding cannot have more than 16000 dimensions",
        ),
        (
            &[0, 2, 0, 0, 0, 0, 0, 0],
            "22P03 invalid binary representation of type embedding",
        ),
        (
            &[0, 1, 0, 0, 0x7f, 0xc0, 0, 0],
            "22000 NaN not allowed in embedding",
        ),
        (
            &[0, 1, 0, 0, 0x7f, 0x80, 0, 0],
            "22000 infinite value not allowed in embedding",
        ),
    ] {
        assert_eq!(
            send(&mut client, "embedding", bytes),
            Err(error.to_owned()),
            "{bytes:?}"
        );
    }
    let row = client.query_one(
        "SELECT embedding_send('[1,-0.5]'), halfembedding_send('[1]')",
        &[],
    )?;
    assert_eq!(row.get::<_, Vec<u8>>(0), embedding);
    assert_eq!(row.get::<_, Vec<u8>>(1), [0, 1, 0, 0, 0x3c, 0]);
    Ok(())
}

#[test]
fn a_damaged_value_is_an_error() -> Result<()> {
    let cluster = Cluster::builder().preload(false).start()?;
    let mut client = cluster.database("a")?;
    // A cast that lies about the layout stands for a damaged page.
    client.batch_execute("CREATE CAST (bytea AS embedding) WITHOUT FUNCTION")?;
    for lie in [
        "''",
        "'\\x00'",
        "'\\x05000000'",
        "'\\xffff0000'",
        "'\\x0100000000'",
    ] {
        let sql = format!("SELECT norm({lie}::bytea::embedding)");
        let error = client.query(&sql, &[]).unwrap_err();
        let db = error.as_db_error();
        ensure!(
            db.is_some_and(|e| e.code().code() == "XX001" && e.message().starts_with("damaged")),
            "{lie}: {error:?}"
        );
    }
    Ok(())
}

#[test]
fn memory_does_not_grow_with_toasted_values() -> Result<()> {
    let cluster = Cluster::builder().preload(false).start()?;
    let mut client = cluster.database("a")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT i, array_agg(sin(i * j))::embedding AS e
             FROM generate_series(1, 60) i, generate_series(1, 4000) j GROUP BY i;
         SET work_mem = '64MB';",
    )?;
    // 3,600 distances and a sort by value detoast 16 kB at each step: 1 GB if nothing were freed.
    let sql = "SELECT count(*) FROM (SELECT a.e <=> b.e FROM t a, t b ORDER BY a.e, b.e) x";
    let growth = "SELECT sum(total_bytes)::int8 FROM pg_backend_memory_contexts";
    let before: i64 = client.query_one(growth, &[])?.get(0);
    client.query_one(sql, &[])?;
    let after: i64 = client.query_one(growth, &[])?.get(0);
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse().ok())
        .unwrap_or(u64::MAX);
    ensure!(after - before < 1 << 20, "{before} -> {after} bytes");
    ensure!(peak < 400 << 10, "the backend grew to {peak} kB");
    Ok(())
}
