//! Names in the SQL of the extension are qualified: what a function, a procedure, a view or a
//! constraint means does not depend on the search path of whoever runs it, nor on what was in a
//! database before the extension.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The scripts of the extension, those of upgrades too.
fn scripts() -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql");
    let mut found = Vec::new();
    for folder in [folder.join("upgrade"), folder] {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "sql") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A keyword, or an identifier in lower case; a quoted identifier has a quote in front.
    Word(String),
    /// A run of operator characters, or a single other one.
    Symbol(String),
    Literal(String),
    /// A body between dollar quotes.
    Body(String),
}

const OPERATOR: &str = "+-*/<>=~!@#%^&|`?";

fn tokens(sql: &str) -> Vec<Token> {
    let chars: Vec<char> = sql.chars().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    let run = |from: usize, wanted: &dyn Fn(char) -> bool| {
        from + chars[from..].iter().take_while(|c| wanted(**c)).count()
    };
    while at < chars.len() {
        let c = chars[at];
        if c.is_whitespace() {
            at += 1;
        } else if c == '-' && chars.get(at + 1) == Some(&'-') {
            at = run(at, &|c| c != '\n');
        } else if c == '\'' || c == '"' {
            let mut text = String::new();
            at += 1;
            while at < chars.len() {
                if chars[at] == c {
                    if chars.get(at + 1) != Some(&c) {
                        break;
                    }
                    at += 1;
                }
                text.push(chars[at]);
                at += 1;
            }
            at += 1;
            found.push(if c == '"' {
                Token::Word(format!("\"{text}"))
            } else {
                Token::Literal(text)
            });
        } else if c == '$' && chars.get(at + 1).is_none_or(|c| !c.is_ascii_digit()) {
            let tag: String = chars[at..=run(at + 1, &|c| c != '$')].iter().collect();
            let rest: String = chars[at + tag.chars().count()..].iter().collect();
            let end = rest.find(&tag).unwrap_or(rest.len());
            at += tag.chars().count() * 2 + rest[..end].chars().count();
            found.push(Token::Body(rest[..end].to_owned()));
        } else if c.is_alphanumeric() || c == '_' || c == '$' {
            let end = run(at, &|c| c.is_alphanumeric() || c == '_' || c == '$');
            let word: String = chars[at..end].iter().collect();
            found.push(Token::Word(word.to_ascii_lowercase()));
            at = end;
        } else if OPERATOR.contains(c) {
            let end = run(at, &|c| OPERATOR.contains(c));
            found.push(Token::Symbol(chars[at..end].iter().collect()));
            at = end;
        } else if c == ':' {
            let end = run(at, &|c| c == ':' || c == '=');
            found.push(Token::Symbol(chars[at..end].iter().collect()));
            at = end;
        } else {
            found.push(Token::Symbol(c.to_string()));
            at += 1;
        }
    }
    found
}

/// Words before a parenthesis that are syntax and no function.
const SYNTAX: &[&str] = &[
    "all",
    "and",
    "any",
    "array",
    "as",
    "by",
    "case",
    "check",
    "coalesce",
    "else",
    "exists",
    "extract",
    "filter",
    "from",
    "greatest",
    "if",
    "key",
    "lateral",
    "least",
    "not",
    "on",
    "or",
    "over",
    "returning",
    "row",
    "select",
    "set",
    "some",
    "table",
    "then",
    "values",
    "when",
    "where",
];

/// Types that the grammar itself takes from pg_catalog.
const TYPES: &[&str] = &[
    "bigint",
    "bit",
    "boolean",
    "char",
    "character",
    "dec",
    "decimal",
    "double",
    "float",
    "int",
    "integer",
    "interval",
    "numeric",
    "real",
    "smallint",
    "time",
    "timestamp",
    "varchar",
];

/// Options of RAISE, which are set with an equals sign.
const RAISE: &[&str] = &["errcode", "message", "detail", "hint", "table", "column"];

/// What depends on a search path in a statement or a body. Statements in literals, which are built
/// for EXECUTE, are looked into as well.
fn unqualified(sql: &str) -> Vec<String> {
    // What format() and CREATE EXTENSION put in stands for a qualified name.
    let mut plain = sql.replace("@extschema@.", "placed.");
    for (place, name) in [
        ("%I.", "placed."),
        ("%I", "placed.name"),
        ("%s", "placed.name"),
    ] {
        for number in ["", "1$", "2$", "3$", "4$"] {
            plain = plain.replace(&place.replacen('%', &format!("%{number}"), 1), name);
        }
    }
    let tokens = tokens(&plain);
    let word = |at: usize| match tokens.get(at) {
        Some(Token::Word(word)) => word.as_str(),
        _ => "",
    };
    let symbol = |at: usize| match tokens.get(at) {
        Some(Token::Symbol(symbol)) => symbol.as_str(),
        _ => "",
    };
    let before = |at: usize, n: usize| at.checked_sub(n).unwrap_or(usize::MAX);
    let mut problems = Vec::new();
    let mut declaring = false;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Literal(text) => {
                let first = text.split_whitespace().next().unwrap_or_default();
                if ["SELECT", "UPDATE", "INSERT", "DELETE", "LOCK"].contains(&first) {
                    problems.extend(unqualified(text));
                }
            }
            Token::Body(body) => problems.extend(unqualified(body)),
            Token::Symbol(text) if text.chars().all(|c| OPERATOR.contains(c)) => {
                // OPERATOR(schema.@@): three tokens before it.
                let qualified = symbol(before(at, 1)) == "." && word(before(at, 4)) == "operator";
                let assigned =
                    (2..=4).any(|n| ["set", "diagnostics"].contains(&word(before(at, n))));
                let option = text == "=" && (assigned || RAISE.contains(&word(before(at, 1))));
                let rows = text == "*"
                    && (word(before(at, 1)) == "select" || symbol(before(at, 1)) == "(");
                // @extschema@.
                let script = text == "@"
                    && (word(at + 1) == "extschema" || word(before(at, 1)) == "extschema");
                if !(qualified || option || rows || script || text == "=>") {
                    let context: Vec<_> = tokens[at.saturating_sub(2)..].iter().take(5).collect();
                    problems.push(format!("operator {text} in {context:?}"));
                }
            }
            Token::Symbol(text) if text == "::" => {
                if symbol(at + 2) != "." && !TYPES.contains(&word(at + 1)) {
                    problems.push(format!("type {}", word(at + 1)));
                }
            }
            Token::Symbol(_) => {}
            Token::Word(text) => {
                declaring = match text.as_str() {
                    "declare" => true,
                    "begin" => false,
                    _ => declaring,
                };
                let first = symbol(before(at, 1)) == ";" && word(at) != "begin";
                let variable = declaring && (first || word(before(at, 1)) == "declare");
                if variable && symbol(at + 2) != "." && !TYPES.contains(&word(at + 1)) {
                    problems.push(format!("type {} of variable {text}", word(at + 1)));
                }
                let alone = symbol(before(at, 1)) != ".";
                let called = symbol(at + 1) == "(";
                let alias = word(before(at, 1)) == "as";
                if alone && called && !alias && text != "operator" && !SYNTAX.contains(&&**text) {
                    // IN with a list compares with the operator = of the search path.
                    problems.push(format!("{text}(…)"));
                }
                let compares = ["between", "like", "ilike", "similar", "nullif", "natural"];
                let distinct = text == "distinct" && word(at + 1) == "from";
                if alone && (compares.contains(&text.as_str()) || distinct) {
                    problems.push(text.clone());
                }
                if text == "case" && word(at + 1) != "when" {
                    problems.push("CASE with an operand".into());
                }
                // EXTRACT(epoch FROM …), and SHARE UPDATE EXCLUSIVE.
                let of_field = ["epoch", "share"].contains(&word(before(at, 1)));
                if ["from", "join", "update"].contains(&text.as_str()) && !of_field {
                    let name = at + 1 + usize::from(word(at + 1) == "only");
                    let syntax = ["", "rows", "lateral", "set"].contains(&word(name));
                    let script = symbol(name) == "@";
                    if !syntax && !script && symbol(name + 1) != "." && word(before(at, 1)) != "for"
                    {
                        problems.push(format!("{text} {}", word(name)));
                    }
                }
            }
        }
    }
    problems
}

/// Statements of a script.
fn statements(sql: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut rest = sql;
    while !rest.is_empty() {
        let quoted = ["--", "'", "\"", "$procedure$", "$function$", "$$"]
            .into_iter()
            .find(|quote| rest.starts_with(quote));
        let end = match quoted {
            Some("--") => rest.find('\n').unwrap_or(rest.len()),
            Some(quote) => {
                let from = quote.len();
                rest[from..]
                    .find(quote)
                    .map_or(rest.len(), |end| end + 2 * from)
            }
            None => rest.chars().next().map_or(0, char::len_utf8),
        };
        let (taken, left) = rest.split_at(end);
        if taken == ";" {
            found.push(String::new());
        } else if quoted != Some("--") {
            found.last_mut().expect("not empty").push_str(taken);
        }
        rest = left;
    }
    found
}

/// The part of a statement that is kept and runs later, if there is one.
fn kept(statement: &str) -> Option<&str> {
    let lower = statement.to_ascii_lowercase();
    let text = lower.trim_start();
    let path = text.contains("set search_path");
    if text.starts_with("create view") || text.starts_with("create or replace view") {
        return lower.find(" as\n").map(|at| &statement[at + 4..]);
    }
    if text.starts_with("create table") || text.starts_with("alter table") {
        return lower.find("check").map(|at| &statement[at..]);
    }
    let function = text.starts_with("create function")
        || text.starts_with("create procedure")
        || text.starts_with("create or replace");
    if function && !path && !text.contains("language c") {
        let body = lower
            .find("$")
            .or_else(|| lower.find("return "))
            .or(lower.find(" as "));
        return body.map(|at| &statement[at..]);
    }
    None
}

#[test]
fn names_in_sql_are_qualified() -> Result<()> {
    let (mut looked, mut problems) = (0, Vec::new());
    for path in scripts()? {
        let sql = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        for statement in statements(&sql) {
            let Some(kept) = kept(&statement) else {
                continue;
            };
            looked += 1;
            let title = statement
                .trim()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned();
            problems.extend(unqualified(kept).iter().map(|p| format!("{title}: {p}")));
        }
    }
    // Three views, a table with a constraint, a procedure.
    ensure!(
        looked >= 5,
        "only {looked} statements with names were found"
    );
    ensure!(problems.is_empty(), "{problems:#?}");
    Ok(())
}

#[test]
fn unqualified_names_are_found() -> Result<()> {
    for (sql, wanted) in [
        ("SELECT 1 WHERE a.oid = b", "operator ="),
        ("SELECT a OPERATOR(pg_catalog.=) b AND c < d", "operator <"),
        ("SELECT $1 <=> $2::@extschema@.embedding", "operator <=>"),
        ("SELECT lower(a)", "lower("),
        ("SELECT pg_catalog.lower(trim(a))", "trim("),
        ("SELECT a::regclass", "type regclass"),
        ("SELECT x FROM pg_class c", "from pg_class"),
        (
            "SELECT x FROM pg_catalog.pg_class c JOIN t ON true",
            "join t",
        ),
        ("SELECT a IN (1, 2)", "in("),
        ("SELECT a BETWEEN 1 AND 2", "between"),
        ("SELECT a IS DISTINCT FROM b", "distinct"),
        (
            "DECLARE x bigint; y oid; BEGIN END",
            "type oid of variable y",
        ),
        (
            "EXECUTE pg_catalog.format('SELECT a = 1 FROM ONLY %s', t)",
            "operator =",
        ),
        ("$$ SELECT f(1) $$", "f("),
    ] {
        let found = unqualified(sql);
        ensure!(
            found.iter().any(|problem| problem.contains(wanted)),
            "{sql}: {found:?}"
        );
    }
    for sql in [
        "SELECT $1 OPERATOR(@extschema@.<=>) $2::@extschema@.embedding",
        "SELECT count FROM @extschema@.f() AS t(a, b) WHERE a OPERATOR(pg_catalog.=) ANY (b)",
        "RAISE EXCEPTION USING errcode = 'x', hint = pg_catalog.format('a = %s', b);",
        "DECLARE a bigint := 1; b pg_catalog.oid; BEGIN x := COALESCE(a, 1)::numeric; END",
        "SELECT EXTRACT(epoch FROM a), interval '1 second' -- a = b",
        "EXECUTE pg_catalog.format('UPDATE ONLY %1$s AS t SET %2$I = e.value', t)",
    ] {
        let found = unqualified(sql);
        ensure!(found.is_empty(), "{sql}: {found:?}");
    }
    ensure!(kept("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'").is_some());
    ensure!(kept("CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN g(1)").is_some());
    ensure!(kept("CREATE FUNCTION f() RETURNS int AS 'a', 'b' LANGUAGE c").is_none());
    Ok(())
}

/// The server reads the scripts in the encoding of the database that the extension is created in.
#[test]
fn the_scripts_have_what_every_encoding_has() -> Result<()> {
    for path in scripts()? {
        let text = std::fs::read_to_string(&path)?;
        let other = text.lines().find(|line| !line.is_ascii());
        ensure!(other.is_none(), "{}: {other:?}", path.display());
    }
    Ok(())
}
