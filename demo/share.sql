-- For every sentence the nearest one among all sentences in other languages, by exact search: is it
-- a translation (same key)? And, harder because each language must answer for itself: the nearest
-- sentence in every single other language.

\pset format unaligned
\pset tuples_only on

-- Stored in line, so that two million distances do not fetch each embedding from its TOAST table.
CREATE TEMP TABLE compared (id int, key text, lang text, meaning embedding);
ALTER TABLE compared ALTER COLUMN meaning SET STORAGE PLAIN;
INSERT INTO compared SELECT id, key, lang, meaning FROM sentences;
CREATE INDEX ON compared (lang);
ANALYZE compared;

CREATE TEMP TABLE nearest_by_language AS
SELECT s.id, s.lang, l.lang AS other, o.key = s.key AS translation, o.distance
FROM compared s
JOIN (SELECT DISTINCT lang FROM compared) l ON l.lang <> s.lang
CROSS JOIN LATERAL (
  SELECT key, meaning <=> s.meaning AS distance
  FROM compared o WHERE o.lang = l.lang
  ORDER BY meaning <=> s.meaning LIMIT 1) o;

CREATE TEMP TABLE nearest AS
SELECT DISTINCT ON (id) id, lang, translation FROM nearest_by_language ORDER BY id, distance;

\echo
\echo 'Sentences whose nearest neighbour in another language is a translation:'
\echo
SELECT '  ' || string_agg(format('%s %s %%', rpad(lang, 3), lpad(share::text, 3)), '   ' ORDER BY lang)
FROM (SELECT lang, round(100 * avg(translation::int)) AS share,
             (row_number() OVER (ORDER BY lang) - 1) / 7 AS line
      FROM nearest GROUP BY lang) shares
GROUP BY line ORDER BY line;
\echo
SELECT format('%s %% of all %s sentences have a translation as nearest neighbour across languages (goal: 70 %%).',
              round(100 * avg(translation::int), 1), count(*)) FROM nearest;
SELECT format('%s %% when every other language must answer for itself (mean over %s pairs of languages).',
              round(100 * avg(translation::int), 1), count(DISTINCT (lang, other))) FROM nearest_by_language;
