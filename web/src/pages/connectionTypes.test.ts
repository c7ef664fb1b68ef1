import { describe, expect, it } from 'vitest'
import { extraFields, extraOf, fromLine, PRESETS } from './connectionTypes'

describe('extraFields', () => {
  it('has the fields of the type and those that are stored', () => {
    expect(extraFields(PRESETS['postgres'], '{"keepalives": "***"}')).toEqual([{ key: 'sslmode', text: '', removed: false }, { key: 'keepalives', stored: '***', text: null, removed: false }])
  })
  it('is none for an extra that is no object', () => expect(extraFields(undefined, '***')).toBeNull())
})

describe('extraOf', () => {
  it('keeps, replaces and removes fields', () => {
    const fields = extraFields(undefined, '{"a": "***", "b": "***", "c": {"d": "***"}}')!
    expect(extraOf([fields[0]!, { ...fields[1]!, text: '5' }, fields[2]!, { key: 'e', text: 'x', removed: false }, { key: 'f', text: '', removed: false }])).toBe('{"a":"***","b":5,"c":{"d":"***"},"e":"x"}')
    expect(extraOf([{ ...fields[0]!, removed: true }])).toBeNull()
  })
  it('keeps the digits of a long number', () => expect(extraOf([{ key: 'a', text: '123456789012345678901', removed: false }])).toBe('{"a":"123456789012345678901"}'))
})

describe('fromLine', () => {
  it('reads a line, or a variable of the environment', () => {
    expect(fromLine('shop=https://ada:p%2Fw@api.shop:8443/v2?timeout=5')).toEqual({ id: 'shop', type: 'http', texts: { host: 'api.shop', port: '8443', schema: 'v2', login: 'ada' }, password: 'p/w', extra: { timeout: '5' } })
    expect(fromLine('PACELINE_CONN_LAKE="aws://"')).toEqual({ id: 'lake', type: 'aws', texts: { host: '', port: '', schema: '', login: '' }, password: '', extra: {} })
  })
  it('is none for an ID', () => {
    for (const text of ['shop', 'shop=', 'a=b', 'my shop=x://y', 'shop=http://[']) expect(fromLine(text)).toBeNull()
  })
})
