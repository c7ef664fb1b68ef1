import { describe, expect, it } from 'vitest'
import { conf, fields, parsed, shown } from './params'

const params = {
  region: { value: 'all', schema: { enum: ['all', 'eu'], title: 'Region' } },
  limit: { value: 10, schema: { type: 'integer' } },
  full: { value: false, schema: {} },
  since: { value: null, schema: { type: ['null', 'string'], format: 'date' } },
  labels: { value: { a: 1 }, schema: { type: 'object' } },
  needed: { schema: { type: 'string' } },
}
const all = fields(params)
const texts = Object.fromEntries(all.map((field) => [field.name, shown(field, params[field.name as keyof typeof params] && (params as Record<string, { value?: unknown }>)[field.name]!.value)]))

describe('a form from params', () => {
  it('has a field of the right kind for each', () => expect(all.map((field) => field.kind)).toEqual(['choice', 'number', 'boolean', 'date', 'json', 'text']))
  it('makes a conf of what differs from the defaults', () => {
    expect(conf(all, { ...texts, limit: '20', needed: 'x' }, params)).toEqual({ conf: { limit: 20, needed: 'x' }, wrong: {} })
  })
  it('keeps values that are cleared and may be null', () => expect(conf(all, { ...texts, needed: 'x', since: '' }, params).conf).toEqual({ needed: 'x' }))
  it('names what is wrong', () => {
    const found = conf(all, { ...texts, limit: '1.5', labels: '{', needed: 'x' }, params)
    expect(Object.keys(found.wrong)).toEqual(['limit', 'labels'])
  })
  it('reads a moment as UTC', () => expect(parsed({ ...all[3]!, kind: 'datetime' }, '2026-01-01T10:00')).toBe('2026-01-01T10:00:00Z'))
})
