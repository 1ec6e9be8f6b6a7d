//! Texts as they come: too long, or in other encodings.

use anyhow::Result;
use laser_tests::failure;
use postgres::error::SqlState;

use super::support::{embed, models};

#[test]
fn long_texts_are_cut_with_one_warning_or_refused() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.setting("laser.encode_in_backend", "on").start()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    let cut = |notices: Vec<String>| {
        notices
            .iter()
            .filter(|n| n.starts_with("WARNING: text is longer"))
            .count()
    };
    for in_backend in ["off", "on"] {
        client.batch_execute(&format!("SET laser.encode_in_backend = {in_backend}"))?;
        notices.take();
        client.batch_execute("SELECT laser_embed(repeat('x', 128))")?;
        assert_eq!(cut(notices.take()), 0);
        client.batch_execute(
            "SELECT laser_embed(repeat('x', 129) || i) FROM generate_series(1, 5) i",
        )?;
        assert_eq!(cut(notices.take()), 1);
        client.batch_execute("SELECT laser_embed(ARRAY[repeat('x', 129), 'short'])")?;
        assert_eq!(cut(notices.take()), 1);
        // The beginning is what counts.
        let same: bool = client
            .query_one(
                "SELECT laser_embed(repeat('x', 128)) = laser_embed(repeat('x', 500))",
                &[],
            )?
            .get(0);
        assert!(same);

        client.batch_execute("SET laser.long_text = 'error'")?;
        let (code, message, hint) = failure(&mut client, "SELECT laser_embed(repeat('x', 129))")?;
        assert_eq!(code, SqlState::STRING_DATA_RIGHT_TRUNCATION);
        assert!(message.contains("longer than the model reads"), "{message}");
        assert!(hint.contains("laser.long_text"), "{hint}");
        let long = "SELECT laser_embed(ARRAY['short', 'the second ' || repeat('x', 129)])";
        let error = client.batch_execute(long).expect_err("it is refused");
        let detail = error.as_db_error().and_then(|e| e.detail()).unwrap_or("");
        assert!(
            // Nobody is shown a text: it may be another's.
            detail.contains("the 128 tokens") && !detail.contains("xxx"),
            "{detail}"
        );

        let (code, message, hint) =
            failure(&mut client, "SELECT laser_embed(repeat('x', 1048577))")?;
        assert_eq!(code, SqlState::PROGRAM_LIMIT_EXCEEDED);
        assert!(message.contains("1048576 bytes"), "{message}");
        assert!(!hint.is_empty());
        client.batch_execute("SET laser.long_text = 'warn'")?;
        client.batch_execute("SELECT laser_embed(repeat('x', 1048576))")?;
    }
    Ok(())
}

#[test]
fn databases_in_other_encodings_are_converted() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.setting("laser.encode_in_backend", "on").start()?;
    let mut utf8 = cluster.database("d")?;
    let expected = embed(&mut utf8, "Où est la gare? Größe")?;
    for encoding in ["LATIN1", "WIN1252"] {
        let name = format!("d_{encoding}");
        utf8.batch_execute(&format!(
            "CREATE DATABASE \"{name}\" ENCODING '{encoding}' TEMPLATE template0
             LC_COLLATE 'C' LC_CTYPE 'C'"
        ))?;
        let mut client = cluster.connect(&name)?;
        client.batch_execute("CREATE EXTENSION laser")?;
        for in_backend in ["off", "on"] {
            client.batch_execute(&format!("SET laser.encode_in_backend = {in_backend}"))?;
            assert_eq!(
                embed(&mut client, "Où est la gare? Größe")?,
                expected,
                "{encoding}"
            );
        }
        let array: Vec<f32> = client
            .query_one(
                "SELECT (laser_embed(ARRAY[$1]))[1]::real[]",
                &[&"Où est la gare? Größe"],
            )?
            .get(0);
        assert_eq!(array, expected, "{encoding}");
    }
    // Without an encoding, bytes must be UTF-8.
    utf8.batch_execute(
        "CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0
         LC_COLLATE 'C' LC_CTYPE 'C'",
    )?;
    let mut client = cluster.connect("ascii")?;
    client.batch_execute("CREATE EXTENSION laser")?;
    assert_eq!(embed(&mut client, "Où est la gare? Größe")?, expected);
    let (code, ..) = failure(&mut client, r"SELECT laser_embed(E'\xff\xfe')")?;
    assert_eq!(code, SqlState::CHARACTER_NOT_IN_REPERTOIRE);
    Ok(())
}
