-- For every sentence the nearest one among all sentences in other languages, by exact search: is it
-- a translation (same key)? And, harder because each language must answer for itself: the nearest
-- sentence in every single other language.

\pset format unaligned
\pset tuples_only on

CREATE TEMP TABLE nearest_by_language AS
SELECT s.id, s.lang, o.lang AS other, (array_agg(o.key = s.key ORDER BY d.distance))[1] AS translation,
       min(d.distance) AS distance
FROM sentences s
JOIN sentences o ON o.lang <> s.lang
CROSS JOIN LATERAL (SELECT s.meaning <=> o.meaning AS distance) d
GROUP BY s.id, s.lang, o.lang;

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
