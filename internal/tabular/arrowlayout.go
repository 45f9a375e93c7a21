package tabular

import (
	"errors"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// checkLayout checks what the buffers of an array say of each other, so that nothing
// is read outside them. The library's check finds text that is not UTF-8 as well and
// then gives the whole array up. That is for the rows to say, so texts are checked as
// bytes, which lie in memory the same way.
func checkLayout(a arrow.Array) error {
	d, err := asBytes(a.Data())
	if err != nil {
		return err
	}
	b := array.MakeFromData(d)
	defer b.Release()
	return array.ValidateFull(b)
}

var errDictionary = errors.New("a dictionary of other values than its type says")

func asBytes(d arrow.ArrayData) (*array.Data, error) {
	t := bytesType(d.DataType())
	if dict, ok := t.(*arrow.DictionaryType); ok {
		values, err := asBytes(d.Dictionary())
		if err != nil {
			return nil, err
		}
		if !arrow.TypeEqual(values.DataType(), dict.ValueType) {
			return nil, errDictionary
		}
		return array.NewDataWithDictionary(t, d.Len(), d.Buffers(), d.NullN(), d.Offset(), values), nil
	}
	var children []arrow.ArrayData
	for _, c := range d.Children() {
		child, err := asBytes(c)
		if err != nil {
			return nil, err
		}
		children = append(children, child)
	}
	return array.NewData(t, d.Len(), d.Buffers(), children, d.NullN(), d.Offset()), nil
}

// bytesType is a type with bytes in the place of text.
func bytesType(t arrow.DataType) arrow.DataType {
	switch t := t.(type) {
	case *arrow.StringType:
		return arrow.BinaryTypes.Binary
	case *arrow.LargeStringType:
		return arrow.BinaryTypes.LargeBinary
	case *arrow.StringViewType:
		return arrow.BinaryTypes.BinaryView
	case *arrow.ListType:
		return arrow.ListOfField(bytesField(t.ElemField()))
	case *arrow.LargeListType:
		return arrow.LargeListOfField(bytesField(t.ElemField()))
	case *arrow.ListViewType:
		return arrow.ListViewOfField(bytesField(t.ElemField()))
	case *arrow.LargeListViewType:
		return arrow.LargeListViewOfField(bytesField(t.ElemField()))
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOfField(t.Len(), bytesField(t.ElemField()))
	case *arrow.MapType:
		return arrow.MapOfFields(bytesField(t.KeyField()), bytesField(t.ItemField()))
	case *arrow.StructType:
		fields := t.Fields() // a copy
		for i := range fields {
			fields[i] = bytesField(fields[i])
		}
		return arrow.StructOf(fields...)
	case *arrow.DictionaryType:
		return &arrow.DictionaryType{IndexType: t.IndexType, ValueType: bytesType(t.ValueType), Ordered: t.Ordered}
	case arrow.ExtensionType:
		return bytesType(t.StorageType())
	}
	return t
}

func bytesField(f arrow.Field) arrow.Field {
	f.Type = bytesType(f.Type)
	return f
}
