// Package row holds the values of Fluss rows and the two row formats of KV tables,
// compacted and indexed, with the binary forms of ARRAY, MAP and ROW inside them.
//
// A KV table stores, under each key, the id of the schema a row was written with
// and the row in the table's format (table.kv.format):
//
//	value := int16 LE schema id | row
//
// See compacted.go, indexed.go and nested.go for the bytes. Rows hold every column
// of their schema, key and partition columns included, and no type information: they
// can only be read with the schema they were written with.
//
// Encoders check every value against its column: NULL where NOT NULL, integers and
// TIME out of range, decimals with too many digits, text that is not UTF-8 or longer
// than CHAR(n), timestamps with digits that the column would drop. They never
// truncate, pad or round silently, with one exception that is part of the format:
// INDEXED rows pad CHAR(n) and BINARY(n) with zeros (see indexed.go). Decoders check
// the form: lengths, offsets, padding bits; the values they return alias their input.
//
// Encoders and Decoders are immutable and may be shared by goroutines; a Writer
// belongs to one.
//
// Facts about Fluss: org.apache.fluss.row.{compacted,indexed,array,map,encode}, read
// and executed at 0.8.0, 0.9.1 and main of August 2026; see ../testdata.
package row
