//! Queries of mining whose functions work against the function that runs them.

use anyhow::{Result, ensure};
use laser_tests::{Cluster, failure};
use postgres::error::SqlState;

/// A function of a query calls this for its last row, when no other row of the batch is looked up.
const SETUP: &str = "
    CREATE TABLE s (id bigint PRIMARY KEY, e embedding(3));
    INSERT INTO s SELECT i, CASE WHEN i < 2049 THEN ARRAY[i, 1, 2]::embedding(3) END
    FROM generate_series(1, 2049) i;
    CREATE TABLE t (id bigint PRIMARY KEY, e embedding(3));
    INSERT INTO t SELECT * FROM s;
    CREATE INDEX ON s USING laser (e);
    CREATE INDEX ON t USING laser (e);
    CREATE VIEW v AS SELECT id, e FROM t;
    ANALYZE s, t;
    CREATE FUNCTION act() RETURNS void LANGUAGE sql AS 'SELECT';
    CREATE FUNCTION last(i bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS
    $$ BEGIN IF i = 2049 THEN PERFORM act(); END IF; RETURN true; END $$;
    CREATE FUNCTION each(i bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS
    $$ BEGIN PERFORM act(); RETURN i; END $$;
    SET enable_sort = off; SET enable_seqscan = off";

#[test]
fn functions_of_a_query_do_not_pull_it_away() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SETUP)?;
    let mut act = |client: &mut postgres::Client, what: &str| {
        client.batch_execute(&format!(
            "CREATE OR REPLACE FUNCTION act() RETURNS void LANGUAGE plpgsql VOLATILE AS
             $$ BEGIN {what}; END $$"
        ))
    };

    // The cursor of a query is not closed under it.
    for close in [
        "EXECUTE 'CLOSE ALL'",
        "EXECUTE 'CLOSE \"<unnamed portal 1>\"'",
    ] {
        act(&mut client, close)?;
        for sql in [
            "SELECT laser_mine('SELECT id, e FROM s', 'SELECT each(id), e FROM t', method => 'index')",
            "SELECT laser_mine('SELECT each(id), e FROM s', 'SELECT id, e FROM t LIMIT 10')",
            "SELECT laser_mine_neighbours('SELECT 1::bigint, each(1), 0.5::float8',
                                          'SELECT 1::bigint, 1::bigint, 0.5::float8')",
        ] {
            if let Err(error) = client.batch_execute(sql) {
                let error = error
                    .as_db_error()
                    .ok_or_else(|| anyhow::anyhow!("{sql}: {error}"))?;
                let expected = ["pinned portal", "active portal", "does not exist"];
                ensure!(
                    expected.iter().any(|e| error.message().contains(e)),
                    "{sql}: {error}"
                );
            }
        }
    }

    // Values are read as what they are, also where a view has become another.
    for columns in [
        "id, 305419896::bigint AS e",
        "id, 'a text' AS e",
        "id, e, id AS more",
        "id::numeric AS id, e",
        "e::text AS id, e",
    ] {
        client.batch_execute("DROP VIEW v; CREATE VIEW v AS SELECT id, e FROM t")?;
        act(
            &mut client,
            &format!("DROP VIEW v; CREATE VIEW v AS SELECT {columns} FROM t"),
        )?;
        let sql = "SELECT laser_mine('SELECT id, e FROM s WHERE last(id)', 'SELECT * FROM v',
                                     method => 'index')";
        let (code, message, hint) = failure(&mut client, sql)?;
        let changed = code == SqlState::OBJECT_IN_USE && message.contains("have changed");
        ensure!(
            changed && hint.contains("meanwhile"),
            "{columns}: {message}"
        );
    }
    ensure!(!cluster.log().contains("terminated by signal"));
    Ok(())
}
