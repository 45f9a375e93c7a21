// Package schema describes Fluss tables: data types, schemas, table descriptors,
// and the names that derive from them. It reads and writes the JSON documents of
// Fluss and answers the questions that decide how rows are stored.
//
// Words used here and below fluss/:
//
//   - A table with a primary key is a KV table. Its physical primary key is the
//     primary key without the partition columns, in primary-key order; RocksDB
//     keys hold exactly these columns.
//   - The bucket key decides a row's bucket. The default bucket key is the
//     physical primary key; an explicit one is a subset of it.
//   - A column id is given once and never reused; rows written under an older
//     schema are matched to newer columns by id. Fields of ROW types take ids
//     from the same counter.
//   - A property is a table option that the server interprets, such as
//     table.kv.format; custom properties belong to the user.
//
// Parsers are strict: a document that Fluss's own serializer would not have
// written is refused, not repaired. The one repair is Fluss's own: columns of the
// primary key and keys of maps become NOT NULL.
//
// Facts about Fluss: org.apache.fluss.metadata.{Schema,TableDescriptor,TablePath},
// org.apache.fluss.utils.json.*JsonSerde and org.apache.fluss.types, read at
// 0.8.0, 0.9.1 and main of August 2026.
package schema
