import { describe, expect, it } from 'vitest'
import { extraFields, extraOf, PRESETS } from './connectionTypes'

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
