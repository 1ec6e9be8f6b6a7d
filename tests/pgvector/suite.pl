#!/usr/bin/env perl
# Points pgvector's tests at laser, and compares what its regression scripts print.
#
#   suite.pl rewrite SOURCE DESTINATION DIFFERENCES TYPES [QUANTIZATION]
#       SOURCE is a source tree of pgvector. DESTINATION gets sql/*.sql, expected/*.out and t/*.pl
#       with the deliberate differences of the list applied. TYPES is laser (its types, operator
#       classes, functions and settings take the place of pgvector's) or pgvector (its own types and
#       operator classes; only indexes and their settings are laser's, and only tests of indexes are
#       taken). QUANTIZATION goes into every laser index.
#   suite.pl compare SQL EXPECTED RESULT
#       RESULT is what `psql -a` printed for SQL. Fails with every statement that gave something else.
#
# The list of differences has paragraphs of fields, `name: value`, with indented lines that go on:
#   in       names of the files, without number and ending, that it is about, separated by spaces
#   types    the TYPES that it is about, if not both
#   drop     statements of regression scripts that match this regular expression are left out; the
#            comment above a statement, which names its section, is matched as well
#   sql      a statement of a regression script, as pgvector has it, that `gives` other rows here;
#            with `has`, only where these are pgvector's
#   perl     what matches this regular expression in a TAP script `becomes` something else
#   why      the reason; an entry without one is refused
use strict;
use warnings FATAL => 'all';
use File::Basename qw(basename);

# Files about nothing that laser has are not taken over.
my %regress = (
    laser    => [qw(btree cast copy halfvec hnsw_halfvec hnsw_vector vector_type)],
    pgvector => [qw(hnsw_halfvec hnsw_vector)],
);
my %tap = (
    laser    => qr/^\d+_(?:hnsw_(?!bit_|sparsevec_)\w+|aggregates|storage|comparison|distance_functions|inputs)$/,
    pgvector => qr/^\d+_hnsw_(?!bit_|sparsevec_)\w+$/,
);

sub slurp {
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!\n";
    local $/;
    return scalar <$file>;
}

sub spill {
    my ($path, $text) = @_;
    open(my $file, '>', $path) or die "$path: $!\n";
    print $file $text;
    close($file) or die "$path: $!\n";
}

# The entries of the list, as hashes.
sub differences {
    my ($path) = @_;
    my @entries;
    for my $paragraph (split /\n(?:[ \t]*\n)+/, slurp($path)) {
        my (%entry, $field);
        for my $line (grep { !/^#/ } split /\n/, $paragraph) {
            if ($line =~ /^([a-z]+):[ ]?(.*)$/) {
                $field = $1;
                $entry{$field} = $2;
            } elsif ($line =~ /^  (.*)$/ && defined $field) {
                $entry{$field} .= ($entry{$field} eq '' ? '' : "\n") . $1;
            } else {
                die "$path: cannot read: $line\n";
            }
        }
        next unless %entry;
        my $kinds = grep { exists $entry{$_} } qw(drop sql perl);
        die "$path: an entry needs in, why and one of drop, sql, perl:\n$paragraph\n"
          unless $entry{in} && $entry{why} && $kinds == 1;
        die "$path: sql needs gives:\n$paragraph\n"     if exists $entry{sql}  && !exists $entry{gives};
        die "$path: perl needs becomes:\n$paragraph\n"  if exists $entry{perl} && !exists $entry{becomes};
        $entry{used} = 0;
        push @entries, \%entry;
    }
    return @entries;
}

sub applies {
    my ($entry, $name, $types) = @_;
    return 0 if exists $entry->{types} && $entry->{types} ne $types;
    return grep { $_ eq '*' || $_ eq $name } split /\s+/, $entry->{in};
}

# laser's names for what pgvector has.
sub translate {
    my ($text, $types, $quantization) = @_;
    for ($text) {
        my $extension = $types eq 'laser' ? 'laser' : 'laser_pgvector CASCADE';
        s/\bCREATE EXTENSION vector\b/CREATE EXTENSION $extension/g;
        s/\bUSING hnsw\b/USING laser/g;
        s/\bhnsw\.(ef_search|iterative_scan|max_scan_tuples)\b/laser.$1/g;
        if (defined $quantization) {
            s{(\bUSING laser \([^()]*\))(?: WITH \(([^()]*)\))?}
             {"$1 WITH (" . (defined $2 ? "$2, " : '') . "quantization = $quantization)"}ge;
        }
        last if $types eq 'pgvector';
        s/\bvector_norm\(/norm(/g;
        s/\barray_to_vector\b/array_to_embedding/g;
        s/\b(half)?vec(?:tor)?_(l2_ops|ip_ops|cosine_ops|cmp|avg)\b/($1 || '') . "embedding_$2"/ge;
        s/\bhalfvec\b/halfembedding/g;
        s/\bvector\b/embedding/g;
    }
    return $text;
}

# Statements of a regression script, each with the comment that its section begins with.
sub statements {
    my ($text) = @_;
    my ($section, @statements, @lines) = ('');
    for my $line (split /\n/, $text) {
        $section = $line if !@lines && $line =~ /^\s*--/;
        next if !@lines && $line =~ /^\s*(?:--.*)?$/;
        push @lines, $line;
        next unless $line =~ /;\s*$/ || ($line =~ /^\\/ && @lines == 1);
        push @statements, { section => $section, sql => join("\n", @lines) };
        @lines = ();
    }
    die "a statement does not end: @lines\n" if @lines;
    return @statements;
}

# What each of these statements printed, from the output of psql -a.
sub results {
    my ($output, @statements) = @_;
    my @lines = grep { !/^--(?![-+]*$)/ } split /\n/, $output;
    my ($at, @results) = (0);
    for my $i (0 .. $#statements) {
        my @echo = split /\n/, $statements[$i]{sql};
        $at++ while $at < @lines && $lines[$at] ne $echo[0];
        die "not found in the output: $statements[$i]{sql}\n" if $at == @lines;
        $at += @echo;
        my $next = $i < $#statements ? (split /\n/, $statements[$i + 1]{sql})[0] : undef;
        my @result;
        push @result, $lines[$at++] while $at < @lines && !(defined $next && $lines[$at] eq $next);
        push @results, join("\n", rows(@result));
    }
    return @results;
}

# The rows of a table that psql printed, without heading and spaces, or the first line of an error.
# What is none of these, such as a notice, stays.
sub rows {
    my @lines = @_;
    my ($error) = grep { /^ERROR:/ } @lines;
    return ($error) if defined $error;
    my ($table, @rows) = (0);
    for my $line (@lines) {
        if ($line =~ /^-[-+]*$/) {
            pop @rows;
            $table = 1;
            next;
        }
        if ($line =~ /^\(\d+ rows?\)$/) {
            $table = 0;
            next;
        }
        $line =~ s/^\s+|\s+$//g;
        next if $line eq '' && !$table;
        push @rows, $line eq '' ? '(null)' : $line;
    }
    return @rows;
}

sub rewrite {
    my ($source, $destination, $list, $types, $quantization) = @_;
    die "types are laser or pgvector, not $types\n" unless exists $tap{$types};
    my @differences = differences($list);
    my %taken       = ('*' => 1);
    for my $folder ('', '/sql', '/expected', '/t') {
        mkdir "$destination$folder" unless -d "$destination$folder";
    }
    for my $name (@{ $regress{$types} }) {
        $taken{$name} = 1;
        my @statements = statements(slurp("$source/test/sql/$name.sql"));
        my @expected   = results(slurp("$source/test/expected/$name.out"), @statements);
        my ($sql, $out) = ('', '');
        for my $i (0 .. $#statements) {
            my ($section, $statement) = @{ $statements[$i] }{qw(section sql)};
            my ($rows, $dropped) = (translate($expected[$i], $types), 0);
            for my $entry (grep { applies($_, $name, $types) } @differences) {
                if (exists $entry->{drop} && "$section\n$statement" =~ /$entry->{drop}/) {
                    $dropped = 1;
                } elsif (exists $entry->{sql} && $statement eq $entry->{sql}
                    && $expected[$i] eq ($entry->{has} // $expected[$i])) {
                    $rows = translate($entry->{gives}, $types);
                } else {
                    next;
                }
                $entry->{used}++;
            }
            next if $dropped;
            $statement = translate($statement, $types, $quantization);
            $sql .= "$statement\n";
            $out .= "$statement\n" . ($rows eq '' ? '' : "$rows\n");
        }
        spill("$destination/sql/$name.sql",      $sql);
        spill("$destination/expected/$name.out", $out);
    }
    for my $path (sort glob "$source/test/t/*.pl") {
        my $file = basename($path, '.pl');
        next unless $file =~ $tap{$types};
        (my $name = $file) =~ s/^\d+_//;
        $taken{$name} = 1;
        my $text = slurp($path);
        for my $entry (grep { exists $_->{perl} && applies($_, $name, $types) } @differences) {
            my $becomes = $entry->{becomes};
            $entry->{used} += ($text =~ s/$entry->{perl}/$becomes/gm) || 0;
        }
        spill("$destination/t/$file.pl", translate($text, $types, $quantization));
    }
    for my $entry (grep { !$_->{used} } @differences) {
        next unless grep { $taken{$_} && applies($entry, $_, $types) } keys %taken;
        my ($kind) = grep { exists $entry->{$_} } qw(drop sql perl);
        print STDERR "unused difference in $entry->{in}: $kind: $entry->{$kind}\n";
    }
    return;
}

sub compare {
    my ($sql, $expected, $result) = @_;
    my @statements = statements(slurp($sql));
    my @wanted     = results(slurp($expected), @statements);
    my @found      = results(slurp($result),   @statements);
    my $wrong      = 0;
    for my $i (0 .. $#statements) {
        next if $wanted[$i] eq $found[$i];
        # laser has words of its own.
        next if $wanted[$i] =~ /^ERROR/ && $found[$i] =~ /^ERROR/;
        $wrong++;
        print "$statements[$i]{sql}\n";
        print "  wanted: $_\n" for $wanted[$i] eq '' ? ('(nothing)') : split /\n/, $wanted[$i];
        print "  found:  $_\n" for $found[$i] eq '' ? ('(nothing)') : split /\n/, $found[$i];
    }
    print "$wrong of " . @statements . " statements differ\n";
    exit($wrong ? 1 : 0);
}

my $command = shift // '';
if    ($command eq 'rewrite' && @ARGV >= 4) { rewrite(@ARGV) }
elsif ($command eq 'compare' && @ARGV == 3) { compare(@ARGV) }
else                                        { die "usage: suite.pl rewrite | compare …\n" }
