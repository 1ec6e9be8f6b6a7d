//! Searches: recall against queries a second.

use anyhow::Result;
use laser_tests::bench::nearest::{least_products, recall};
use laser_tests::bench::speed::{ensure_index, repeated, transactions};
use laser_tests::bench::{Rows, progress};
use laser_tests::curve::Curve;
use laser_tests::{Cluster, say};

use super::build::Contender;
use super::settings::{DATABASE, K, Settings};

/// Queries a second of one contender, by recall.
pub struct Speed {
    pub one: Curve,
    /// Of several sessions, in the order of `--clients`.
    pub many: Vec<Curve>,
}

/// Measures the searches of the contender that has been built last.
pub fn search(
    cluster: &Cluster,
    s: &Settings,
    vectors: &dyn Rows,
    rows: usize,
    c: &Contender,
) -> Result<Speed> {
    progress(&format!("{rows} rows: exact neighbors"));
    let first = vectors.rows() - s.queries;
    let least = least_products(vectors, 0..rows, first..vectors.rows(), K);
    let mut client = cluster.connect(DATABASE)?;
    client.batch_execute("SET enable_seqscan = off")?;
    let table = c.table;
    let lateral = format!(
        "SELECT q.id, x.id FROM asked q, LATERAL (SELECT i.id FROM {table} i ORDER BY i.v <=> q.v LIMIT {K}) x"
    );
    ensure_index(&mut client, &lateral, "vi")?;
    let script = format!(
        "\\set i random(0, {})\nSELECT id FROM {table} ORDER BY v <=> (SELECT v FROM asked WHERE id = :i) LIMIT {K};",
        s.queries - 1
    );
    let curve = || Curve {
        name: c.name.clone(),
        points: Vec::new(),
    };
    let mut speed = Speed {
        one: curve(),
        many: s.clients.iter().map(|_| curve()).collect(),
    };
    let default = c.has_default.then_some(0);
    let widths = (s.ef.iter().copied()).filter(|ef| (1..=c.widest).contains(ef));
    for ef in widths.chain(default) {
        progress(&format!("{rows} rows: {} at {ef}", c.name));
        client.batch_execute(&format!("SET {} = {ef}", c.ef))?;
        let recall = recall(&mut client, &lateral, vectors, first, &least, K)?;
        let count = format!("SELECT count(*) FROM ({lateral}) x");
        let one = repeated(&mut client, &count, s.seconds)? * s.queries as f64;
        let settings = [format!("{}={ef}", c.ef), "enable_seqscan=off".to_owned()];
        let many = s
            .clients
            .iter()
            .map(|clients| transactions(cluster, DATABASE, &script, &settings, *clients, s.seconds))
            .collect::<Result<Vec<_>>>()?;
        let width = if ef == 0 {
            "by default".to_owned()
        } else {
            format!("at {ef}")
        };
        let pairs: Vec<String> = (s.clients.iter().zip(&many))
            .map(|(clients, speed)| format!("{speed:.0} with {clients} clients"))
            .collect();
        say!(
            "  {width}: recall {recall:.4}, {one:.0} queries/s, {}",
            pairs.join(", ")
        );
        // A default that is wider than the widths beside it is the end of the curve; a narrower one is no part of it.
        if ef > 0 || speed.one.points.last().is_none_or(|last| recall > last.0) {
            speed.one.points.push((recall, one));
            for (curve, speed) in speed.many.iter_mut().zip(many) {
                curve.points.push((recall, speed));
            }
        }
    }
    Ok(speed)
}

/// Prints the speeds at equal recall, and their ratios to those of the last contender.
pub fn compare(s: &Settings, all: &[Speed]) {
    let Some(last) = all.last() else { return };
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.0}"));
    for &recall in &s.recall {
        for found in all {
            let curves = std::iter::once((&found.one, &last.one, 1)).chain(
                (found.many.iter().zip(&last.many).zip(&s.clients)).map(|((a, b), n)| (a, b, *n)),
            );
            let cells: Vec<String> = curves
                .map(|(curve, reference, clients)| {
                    let (ours, theirs) = (curve.at(recall), reference.at(recall));
                    let ratio = match (ours, theirs) {
                        (Some(ours), Some(theirs)) => format!("{:.2}", ours / theirs),
                        _ => "-".to_owned(),
                    };
                    format!("{clients} clients {} ({ratio})", figure(ours))
                })
                .collect();
            say!(
                "  queries/s at {recall}: {}: {}",
                found.one.name,
                cells.join(", ")
            );
        }
    }
}
