# make demo                    installs what is missing, builds, starts a private server, shows searches
# make psql SQL="…"            one statement on the demo's server (interactive without SQL)
# make stop                    stops the demo's server
# make test [ARGS="…"]         every test; ARGS go to cargo test
# make install PG_CONFIG=…     installs laser into your own PostgreSQL
# make bench                   all benchmarks: bench-encoder bench-index bench-mining bench-trainer
# make bench-recall            recall over kinds of data, beside pgvector (ARGS="--page FILE": a page of it)
# make bench-plans             whether the planner chooses the fastest plan
# make bench-scale             builds, searches, first queries and inserts as rows become many, beside pgvector
# make bench-cutoff            what a limit on the distance saves
# make bench-filter            searches with filters of all selectivities, beside pgvector
# make bench-segment           build and search of one segment, without a server (ARGS)
# make bench-vector            nanoseconds of a distance
# make lint | fmt | clean

.PHONY: demo psql stop test deps build install bench bench-encoder bench-index bench-mining \
        bench-trainer bench-recall bench-plans bench-cutoff bench-filter bench-scale bench-segment bench-vector lint fmt clean help

help:
	@sed -n '/^$$/q;s/^# //p' Makefile

deps:
	@scripts/deps.sh

build: deps
	@scripts/build.sh

demo: build
	@scripts/demo.sh

# SQL is handed over unexpanded, so that $1 or $$ in it reach the server as typed.
psql: override export SQL := $(value SQL)
psql:
	@scripts/psql.sh

stop:
	@scripts/stop.sh

test: deps
	@scripts/test.sh $(ARGS)

install: build
	@scripts/install-into.sh

bench: bench-encoder bench-index bench-mining bench-trainer

bench-encoder bench-index bench-mining bench-trainer bench-recall bench-plans bench-cutoff bench-filter bench-scale \
bench-segment bench-vector: deps
	@scripts/bench.sh $(@:bench-%=%) $(ARGS)

fmt:
	cargo fmt --all

lint: deps
	@scripts/lint.sh

clean:
	-@scripts/stop.sh
	cargo clean
