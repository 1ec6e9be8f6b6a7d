//! What the tables of the benchmark are made of.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use laser_model::catalog::SHIPPED;
use laser_tests::bench::{arguments, list};

pub const DATABASE: &str = "scale";
const TABLES: [&str; 8] = [
    "build", "search", "open", "inserts", "load", "mining", "upkeep", EMBED,
];
/// Takes sentences, and is made where it is named alone.
const EMBED: &str = "embed";
const METHODS: [&str; 3] = ["exact", "approximate", "index"];
/// How many nearest rows queries want.
pub const K: usize = 10;

pub struct Settings {
    pub tables: Vec<String>,
    pub rows: Vec<usize>,
    pub dimensions: usize,
    pub sentences: Option<PathBuf>,
    /// Of those that ship.
    pub model: String,
    pub memory: Vec<String>,
    pub buffers: String,
    pub only_laser: bool,
    pub queries: usize,
    pub ef: Vec<u32>,
    pub recall: Vec<f64>,
    pub clients: Vec<usize>,
    pub seconds: u64,
    pub modes: Vec<String>,
    pub limit: usize,
    pub methods: Vec<String>,
    pub load: usize,
    pub curves: Option<PathBuf>,
    pub output: PathBuf,
}

impl Settings {
    pub fn wants(&self, table: &str) -> bool {
        self.tables.iter().any(|name| name == table)
    }

    pub fn most_rows(&self) -> usize {
        self.rows.iter().copied().max().unwrap_or(0)
    }
}

pub fn settings() -> Result<Settings> {
    let mut s = Settings {
        tables: (TABLES.iter().filter(|name| **name != EMBED))
            .map(|name| (*name).to_owned())
            .collect(),
        rows: vec![100_000],
        dimensions: 384,
        sentences: None,
        model: SHIPPED.to_owned(),
        memory: vec!["64MB".to_owned(), "4GB".to_owned()],
        buffers: "2GB".to_owned(),
        only_laser: false,
        queries: 300,
        ef: vec![40, 100, 200, 400, 600, 800, 1000],
        recall: vec![0.95, 0.98, 0.99],
        clients: vec![8],
        seconds: 10,
        modes: ["off", "on", "pgvector"].map(str::to_owned).to_vec(),
        limit: 4096,
        methods: METHODS.map(str::to_owned).to_vec(),
        load: 200_000,
        curves: None,
        output: std::env::current_exe()?.with_file_name("../../bench-scale.txt"),
    };
    arguments(|name, value| {
        match name {
            "--tables" => s.tables = list(&value)?,
            "--rows" => s.rows = list(&value)?,
            "--dimensions" => s.dimensions = value.parse()?,
            "--sentences" => s.sentences = Some(value.into()),
            "--model" => s.model = value,
            "--memory" => s.memory = list(&value)?,
            "--buffers" => s.buffers = value,
            "--only" => {
                ensure!(value == "laser", "--only laser leaves out pgvector");
                s.only_laser = true;
            }
            "--queries" => s.queries = value.parse()?,
            "--ef" => s.ef = list(&value)?,
            "--recall" => s.recall = list(&value)?,
            "--clients" => s.clients = list(&value)?,
            "--seconds" => s.seconds = value.parse()?,
            "--modes" => s.modes = list(&value)?,
            "--limit" => s.limit = value.parse()?,
            "--methods" => s.methods = list(&value)?,
            "--load" => s.load = value.parse()?,
            "--curves" => s.curves = Some(value.into()),
            "--output" => s.output = value.into(),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    for table in &s.tables {
        ensure!(
            TABLES.contains(&table.as_str()),
            "no table is called {table}"
        );
    }
    for method in &s.methods {
        ensure!(
            METHODS.contains(&method.as_str()),
            "no method is called {method}"
        );
    }
    ensure!(
        s.sentences.is_some() || !s.wants(EMBED),
        "--tables embed takes --sentences"
    );
    let lists = [s.rows.len(), s.memory.len(), s.clients.len(), s.ef.len()];
    ensure!(
        lists.iter().all(|length| *length > 0) && s.seconds > 0 && s.queries > 0,
        "nothing to do"
    );
    Ok(s)
}
