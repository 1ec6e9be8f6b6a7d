"""The peer of bench_scale's mining: FAISS, flat and by its indexes.

    faiss.py SOURCE TARGET EXACT DIMENSIONS K THREADS IVF HNSW

SOURCE and TARGET are matrices of float32, EXACT the pairs (int64) that the exact way of laser has found. Pairs are
each other's best by the ratio margin. Each index is searched with wider and wider settings until it has the share of
these pairs that IVF and HNSW are; one whose share is 0 is left out. Prints a line for each search that counts.
"""
import resource
import sys
import time

import faiss
import numpy

source, target, exact = sys.argv[1:4]
dimensions, k, threads = map(int, sys.argv[4:7])
shares = map(float, sys.argv[7:9])
faiss.omp_set_num_threads(threads)
x = numpy.fromfile(source, dtype=numpy.float32).reshape(-1, dimensions)
y = numpy.fromfile(target, dtype=numpy.float32).reshape(-1, dimensions)
exact = numpy.fromfile(exact, dtype=numpy.int64).reshape(-1, 2)
exact = exact[:, 0] * len(y) + exact[:, 1]


def best(cosines, neighbours, own, others):
    known = neighbours >= 0
    margin = numpy.where(known, 2 * cosines / (own[:, None] + others[neighbours]), -numpy.inf)
    return neighbours[numpy.arange(len(margin)), margin.argmax(axis=1)]


def mined(forward, backward):
    """Pairs whose rows are each other's best, as one number each."""
    means = [lists[0].mean(axis=1) for lists in (forward, backward)]
    to_target = best(*forward, means[0], means[1])
    to_source = best(*backward, means[1], means[0])
    rows = numpy.arange(len(to_target))
    both = to_source[to_target] == rows
    return rows[both] * len(y) + to_target[both]


def timed(run):
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(name, pairs, wall, cpu):
    recall = len(numpy.intersect1d(pairs, exact)) / len(exact)
    print(f"FAISS {faiss.__version__}, {name}: {wall:.1f} s ({cpu:.1f} CPU-s), {memory():.0f} MB, recall {recall:.4f}", flush=True)
    return recall


def both(indexes):
    return indexes[1].search(x, k), indexes[0].search(y, k)


def flat():
    indexes = [faiss.IndexFlatIP(dimensions) for _ in range(2)]
    indexes[0].add(x)
    indexes[1].add(y)
    return mined(*both(indexes))


def built(make):
    indexes = []
    for rows in (x, y):
        index = make()
        if not index.is_trained:
            index.train(rows)
        index.add(rows)
        indexes.append(index)
    return indexes


def hnsw():
    index = faiss.IndexHNSWFlat(dimensions, 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 64
    return index


def inverted():
    lists = int(4 * len(x) ** 0.5)
    return faiss.index_factory(dimensions, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)


report("flat", *timed(flat))
ways = (
    ("IVF (4 lists for each root of the rows)", inverted, lambda index, value: setattr(index, "nprobe", value)),
    ("HNSW (M 16, efConstruction 64)", hnsw, lambda index, value: setattr(index.hnsw, "efSearch", value)),
)
for (name, make, width), wanted in zip(ways, shares):
    if not wanted:
        continue
    indexes, build_wall, build_cpu = timed(lambda: built(make))
    print(f"FAISS {faiss.__version__}, {name}: built in {build_wall:.1f} s ({build_cpu:.1f} CPU-s)", flush=True)
    value = 8
    while value <= 2048:
        for index in indexes:
            width(index, value)
        recall = report(f"{name} at {value}", *timed(lambda: mined(*both(indexes))))
        if recall >= wanted:
            break
        value *= 2
    del indexes
