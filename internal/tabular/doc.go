// Package tabular reads and writes tables of rows as files: CSV, JSON Lines,
// Parquet and Arrow IPC, plain or compressed, from files, globs and pipes.
//
// # Reading
//
// A Reader turns inputs into record batches whose columns a table can take, in
// input order. Files are decompressed by their first bytes (gzip, Zstandard),
// text is cut into chunks at record boundaries and parsed on several goroutines.
//
// A record is one row of an input: a CSV record (which may span lines), a line of
// JSON, a row of a Parquet or Arrow file. A record that the table cannot take is
// an *InputError with file, line (or row) and column. It ends the reading, or,
// with Options.OnError set to Skip, becomes a Reject and the reading goes on. An
// input that cannot be understood as a whole (an unknown column, a truncated
// Parquet file, a quote that never closes) always ends the reading: to skip it
// could lose any number of rows.
//
// A Position names how far a batch reaches. A reader opened at it delivers exactly
// the records behind it.
//
// # Text forms of values
//
// CSV cells, JSON strings and printed tables share one text form per type; every
// value printed is read back equal:
//
//	BOOLEAN            true, false (read without case)
//	integers           decimal digits, no spaces, no fraction
//	FLOAT, DOUBLE      decimal, exponent allowed; NaN, Infinity, -Infinity
//	DECIMAL            digits with at most as many fraction digits as the scale
//	CHAR, STRING       the text itself, valid UTF-8
//	BINARY, BYTES      base64 (RFC 4648, standard alphabet, padded)
//	DATE               2006-01-02
//	TIME               15:04:05 with up to three fraction digits
//	TIMESTAMP          2006-01-02T15:04:05.999999999 (a space for the T is read too)
//	TIMESTAMP_LTZ      the same with Z or an offset such as +02:00; printed in UTC
//	ARRAY, MAP, ROW    JSON; a map with text-like keys is an object, any other an
//	                   array of [key, value] pairs
//
// In JSON, booleans, numbers and null are themselves and everything else is a
// string. In CSV an unquoted empty cell is NULL and "" is the empty text; with
// another null text, that text unquoted is NULL and an empty cell is empty text.
package tabular
