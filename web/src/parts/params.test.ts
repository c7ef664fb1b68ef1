import { describe, expect, it } from 'vitest'
import { conf, fields, named, parsed, shown } from './params'

const params = {
  region: { value: 'all', schema: { enum: ['all', 'eu'], title: 'Region' } },
  limit: { value: 10, schema: { type: 'integer', minimum: 1, maximum: 99 } },
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
    expect(conf(all, texts, params).wrong).toEqual({ needed: 'Required.' })
  })
  it('names bounds', () => {
    expect(conf(all, { ...texts, limit: '0', needed: 'x' }, params).wrong).toEqual({ limit: 'Enter at least 1.' })
    expect(conf(all, { ...texts, limit: '100', needed: 'x' }, params).wrong).toEqual({ limit: 'Enter at most 99.' })
  })
  it('finds the field of an error of the server', () => {
    expect(named(all, "Param 'limit' cannot be 0: 0 is less than the minimum of 1.")).toBe('limit')
    expect(named(all, "There is no param 'other': the params are limit.")).toBe(null)
  })
  it('reads a moment as UTC', () => expect(parsed({ ...all[3]!, kind: 'datetime' }, '2026-01-01T10:00')).toBe('2026-01-01T10:00:00Z'))
})
