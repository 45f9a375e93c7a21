// Package flussarrow joins Apache Arrow and Fluss: types in both directions, a
// columnar encoder from record batches to the key and value bytes of a Fluss
// table, and a builder from decoded rows to record batches.
//
// Words:
//
//   - A table schema is Fluss's (package schema); an Arrow schema is what a batch
//     brings along. Columns are matched by name, exactly.
//   - A binding connects an Encoder to one batch. Everything that can be wrong
//     with a batch (a null in a NOT NULL column, a number out of range) is found
//     by Bind, column by column, and named with column and row, so that encoding
//     a bound row is only copying bytes.
//
// Casts only widen: every value of the source type must have a place in the target
// type, or the value itself must fit exactly. int64 5 goes into TINYINT, int64
// 300 into TINYINT and 0.5 into INT are errors; nothing is rounded, truncated or
// wrapped. See Encoder.Bind for the table.
package flussarrow
