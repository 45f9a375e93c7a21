import java.math.BigDecimal;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericArray;
import org.apache.fluss.row.GenericMap;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalArray;
import org.apache.fluss.row.InternalMap;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.types.ArrayType;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DecimalType;
import org.apache.fluss.types.MapType;
import org.apache.fluss.types.RowType;

/**
 * Rows as JSON objects: BYTES and BINARY "0x…", DECIMAL plain text, TIMESTAMP and
 * TIMESTAMP_LTZ "epochMillis+nanoOfMillins", DATE days, TIME milliseconds of the day, MAP
 * [[k,v],…] in stored order, ROW an object, NaN and infinities text.
 */
final class Rows {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  private Rows() {}

  static GenericRow parse(JsonNode json, RowType type) {
    List<String> names = type.getFieldNames();
    GenericRow row = new GenericRow(names.size());
    for (int i = 0; i < names.size(); i++) {
      row.setField(i, value(json.get(names.get(i)), type.getTypeAt(i)));
    }
    return row;
  }

  private static Object value(JsonNode json, DataType type) {
    if (json == null || json.isNull()) {
      return null;
    }
    switch (type.getTypeRoot()) {
      case BOOLEAN: return json.booleanValue();
      case TINYINT: return (byte) json.intValue();
      case SMALLINT: return (short) json.intValue();
      case INTEGER: case DATE: case TIME_WITHOUT_TIME_ZONE: return json.intValue();
      case BIGINT: return json.longValue();
      case FLOAT: return Float.parseFloat(json.asText());
      case DOUBLE: return Double.parseDouble(json.asText());
      case CHAR: case STRING: return BinaryString.fromString(json.textValue());
      case BYTES: case BINARY: return HexFormat.of().parseHex(json.textValue().substring(2));
      case DECIMAL: {
        DecimalType decimal = (DecimalType) type;
        return Decimal.fromBigDecimal(new BigDecimal(json.textValue()), decimal.getPrecision(), decimal.getScale());
      }
      case TIMESTAMP_WITHOUT_TIME_ZONE: return TimestampNtz.fromMillis(millis(json), nanos(json));
      case TIMESTAMP_WITH_LOCAL_TIME_ZONE: return TimestampLtz.fromEpochMillis(millis(json), nanos(json));
      case ARRAY: {
        Object[] elements = new Object[json.size()];
        for (int i = 0; i < elements.length; i++) {
          elements[i] = value(json.get(i), ((ArrayType) type).getElementType());
        }
        return new GenericArray(elements);
      }
      case MAP: {
        MapType map = (MapType) type;
        Map<Object, Object> entries = new LinkedHashMap<>();
        for (JsonNode entry : json) {
          entries.put(value(entry.get(0), map.getKeyType()), value(entry.get(1), map.getValueType()));
        }
        return new GenericMap(entries);
      }
      case ROW: return parse(json, (RowType) type);
      default: throw new IllegalArgumentException("type " + type);
    }
  }

  private static long millis(JsonNode json) {
    return Long.parseLong(json.textValue().split("\\+")[0]);
  }

  private static int nanos(JsonNode json) {
    return Integer.parseInt(json.textValue().split("\\+")[1].replace("ns", ""));
  }

  static ObjectNode json(InternalRow row, RowType type) {
    ObjectNode json = NODES.objectNode();
    for (int i = 0; i < type.getFieldCount(); i++) {
      DataType column = type.getTypeAt(i);
      json.set(type.getFieldNames().get(i), json(InternalRow.createFieldGetter(column, i).getFieldOrNull(row), column));
    }
    return json;
  }

  private static JsonNode json(Object value, DataType type) {
    if (value == null) {
      return NODES.nullNode();
    }
    switch (type.getTypeRoot()) {
      case BOOLEAN: return NODES.booleanNode((Boolean) value);
      case TINYINT: case SMALLINT: case INTEGER: case DATE: case TIME_WITHOUT_TIME_ZONE: return NODES.numberNode(((Number) value).intValue());
      case BIGINT: return NODES.numberNode((long) (Long) value);
      case FLOAT: return NODES.numberNode((float) (Float) value);
      case DOUBLE: return NODES.numberNode((double) (Double) value);
      case CHAR: case STRING: return NODES.textNode(value.toString());
      case BYTES: case BINARY: return NODES.textNode("0x" + HexFormat.of().formatHex((byte[]) value));
      case DECIMAL: return NODES.textNode(((Decimal) value).toBigDecimal().toPlainString());
      case TIMESTAMP_WITHOUT_TIME_ZONE: {
        TimestampNtz t = (TimestampNtz) value;
        return NODES.textNode(t.getMillisecond() + "+" + t.getNanoOfMillisecond() + "ns");
      }
      case TIMESTAMP_WITH_LOCAL_TIME_ZONE: {
        TimestampLtz t = (TimestampLtz) value;
        return NODES.textNode(t.getEpochMillisecond() + "+" + t.getNanoOfMillisecond() + "ns");
      }
      case ARRAY: return list((InternalArray) value, ((ArrayType) type).getElementType());
      case MAP: {
        InternalMap map = (InternalMap) value;
        ArrayNode keys = list(map.keyArray(), ((MapType) type).getKeyType());
        ArrayNode values = list(map.valueArray(), ((MapType) type).getValueType());
        ArrayNode entries = NODES.arrayNode();
        for (int i = 0; i < map.size(); i++) {
          entries.addArray().add(keys.get(i)).add(values.get(i));
        }
        return entries;
      }
      case ROW: return json((InternalRow) value, (RowType) type);
      default: throw new IllegalArgumentException("type " + type);
    }
  }

  private static ArrayNode list(InternalArray array, DataType type) {
    InternalArray.ElementGetter getter = InternalArray.createElementGetter(type);
    ArrayNode list = NODES.arrayNode();
    for (int i = 0; i < array.size(); i++) {
      list.add(json(getter.getElementOrNull(array, i), type));
    }
    return list;
  }
}
