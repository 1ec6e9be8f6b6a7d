-- For every sentence the nearest one among all sentences in other languages, by exact search: is it
-- a translation (same key)? And, harder because each language must answer for itself: the nearest
-- sentence in every single other language.

\set QUIET on
\pset footer off

CREATE TEMP TABLE nearest AS
SELECT s.id, s.lang, o.key = s.key AS translation
FROM sentences s
CROSS JOIN LATERAL (
  SELECT key FROM sentences o
  WHERE o.lang <> s.lang
  ORDER BY o.meaning <=> s.meaning
  LIMIT 1) o;

CREATE TEMP TABLE nearest_by_language AS
SELECT lang, other, avg((key = other_key)::int) AS right_share
FROM (
  SELECT DISTINCT ON (s.id, o.lang) s.lang, o.lang AS other, s.key, o.key AS other_key
  FROM sentences s JOIN sentences o ON o.lang <> s.lang
  ORDER BY s.id, o.lang, s.meaning <=> o.meaning) pairs
GROUP BY lang, other;

\echo
\echo 'Share of sentences whose nearest neighbour in another language is a translation:'
\echo
\pset format unaligned
\pset tuples_only on
SELECT string_agg(format('%s %3s %%', rpad('  ' || lang, 6), share), E'\n' ORDER BY line, col) FROM
(SELECT lang, round(100 * avg(translation::int)) AS share, 0 AS line, lang AS col
 FROM nearest GROUP BY lang) shares;
\echo

SELECT format('%s %% of all sentences have a translation as their nearest neighbour across languages (goal: at least 70 %%).',
              round(100 * avg(translation::int), 1)) FROM nearest;
SELECT format('%s %% on average over all %s pairs of languages, where each language must answer for itself.',
              round(100 * avg(right_share), 1), count(*)) FROM nearest_by_language;
