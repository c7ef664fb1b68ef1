import { expect, it } from 'vitest'
import type { components } from '../api/schema'
import { changes } from './tableChanges'

const version = (publication: number, columns: Record<string, string> | null) => ({ publication, published_at: '2026-11-28T03:00:00Z', columns }) as components['schemas']['TableVersion']

it('says which columns came, left or changed their type', () => {
  const found = changes([version(4, { id: 'long', price: 'double' }), version(3, null), version(2, { id: 'int', price: 'double', old: 'string' }), version(1, { id: 'int', price: 'double', old: 'string' })])
  expect(found.map((one) => [one.publication, one.added, one.removed])).toEqual([[4, ['id long'], ['id int', 'old string']]])
})
