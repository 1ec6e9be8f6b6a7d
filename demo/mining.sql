-- Two collections of unrelated sentences, one German and one English, that hide translations of
-- each other: the pairs that mining finds, and how many of them are right.
--
-- Run it in the folder of the repository: \copy reads demo/mining_*.tsv.

\set QUIET on
SET client_min_messages = warning;
DROP TABLE IF EXISTS de, en, gold, mined;
CREATE TABLE de (id bigint PRIMARY KEY, body text NOT NULL);
CREATE TABLE en (id bigint PRIMARY KEY, body text NOT NULL);
CREATE TABLE gold (de bigint REFERENCES de, en bigint REFERENCES en);
\copy de FROM 'demo/mining_de.tsv'
\copy en FROM 'demo/mining_en.tsv'
\copy gold FROM 'demo/mining_gold.tsv'

\echo
\pset format unaligned
\pset fieldsep '  '
\pset tuples_only on
SELECT format('%s German and %s English sentences, among them %s pairs of translations.',
              (SELECT count(*) FROM de), (SELECT count(*) FROM en), (SELECT count(*) FROM gold));

CREATE TABLE mined AS
SELECT * FROM laser_mine('SELECT id, body FROM de', 'SELECT id, body FROM en');

\echo
\echo 'The best and the worst pairs (+ is a translation):'
(SELECT CASE WHEN gold.de IS NULL THEN '-' ELSE '+' END, to_char(score, '0.000'),
        rpad(de.body, 48), en.body
 FROM mined JOIN de ON de.id = source_id JOIN en ON en.id = target_id
 LEFT JOIN gold ON (gold.de, gold.en) = (source_id, target_id)
 ORDER BY score DESC LIMIT 5)
UNION ALL SELECT '…', '', '', ''
UNION ALL
(SELECT * FROM (
   SELECT CASE WHEN gold.de IS NULL THEN '-' ELSE '+' END, to_char(score, '0.000'),
          rpad(de.body, 48), en.body
   FROM mined JOIN de ON de.id = source_id JOIN en ON en.id = target_id
   LEFT JOIN gold ON (gold.de, gold.en) = (source_id, target_id)
   ORDER BY score LIMIT 5) worst
 ORDER BY 2 DESC);

-- The threshold is chosen on the first half of the German sentences and applied to the others.
\echo
SELECT format('From a score of %s, which is best for the first half of the German sentences:',
              round(threshold::numeric, 3)), threshold
FROM laser_bucc_score('SELECT source_id, target_id, score FROM mined WHERE source_id <= 75',
                      'SELECT de, en FROM gold WHERE de <= 75') \gset half_
\echo :half_format
SELECT format('  other half: precision %s, recall %s, F1 %s', round("precision"::numeric, 3),
              round(recall::numeric, 3), round(f1::numeric, 3))
FROM laser_bucc_score('SELECT source_id, target_id, score FROM mined WHERE source_id > 75',
                      'SELECT de, en FROM gold WHERE de > 75', :half_threshold);
SELECT format('All sentences, at their best threshold %s: precision %s, recall %s, F1 %s (goal: over 0.8).',
              round(threshold::numeric, 3), round("precision"::numeric, 3),
              round(recall::numeric, 3), round(f1::numeric, 3))
FROM laser_bucc_score('SELECT source_id, target_id, score FROM mined', 'SELECT de, en FROM gold');
