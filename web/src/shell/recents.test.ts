import { expect, test } from 'vitest'
import { subject } from './recents'

test('a page is remembered by what it is about, without its tab', () => {
  expect(subject('/dags/orders/graph')).toEqual({ path: '/dags/orders', text: 'orders' })
  expect(subject('/dags/orders/runs')).toEqual({ path: '/dags/orders', text: 'orders' })
  expect(subject('/dags/orders/runs/a%20b/gantt')).toEqual({ path: '/dags/orders/runs/a%20b', text: 'orders / a b' })
  expect(subject('/dags/orders/runs/one/tasks/load/2/why')).toEqual({ path: '/dags/orders/runs/one/tasks/load', text: 'orders / one / load' })
  expect(subject('/pools')).toBeNull()
  expect(subject('/dags/%E0%A4%A')).toBeNull()
})
